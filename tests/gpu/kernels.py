"""Kernels for a pretended GPU that take no hours: torch's references, each queued as a kernel is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from kernels import interface
from kernels.decoder import Linear
from kernels.interface import Kernels
from kernels.plans import DecodePlan, RopePlan
from kernels.reference.backend import ReferenceKernels
from kernels.slots import PromptRows, SlotTensors, StepRows
from tests.gpu.tensors import DeviceTensor, launch

REFERENCE = ReferenceKernels()


class Queued(ReferenceKernels):
    """`kernels.interface.Kernels` on the device that tensors are made on. A row has the same bits in every batch where
    the references' rows have: in float32."""

    @property
    def tolerates_neighbours(self) -> bool:
        return True

    @staticmethod
    def set_threads(threads: int) -> None:
        torch.set_num_threads(1)

    def pack_linear(self, weight: Tensor, bias: Tensor | None) -> Linear:
        return QueuedLinear(weight, bias)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return _queue(torch.empty_like(x), REFERENCE.rms_norm, x, weight, eps)

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        rows, outputs = gate_up.shape
        return _queue(gate_up.new_empty((rows, outputs // 2)), REFERENCE.silu_mul, gate_up)

    def plan_rope(self, cos_sin: Tensor, positions: Tensor, slots: Tensor, k_cache: Tensor) -> RopePlan | None:
        return None

    def rope_and_cache(self, q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> Tensor:
        return _queue(
            torch.empty_like(q, memory_format=torch.contiguous_format), REFERENCE.rope_and_cache, q, k, v, *rest
        )

    def write_cache(self, *given: Any) -> None:
        launch_one(REFERENCE.write_cache, *given)

    def plan_decode(self, *given: Any) -> DecodePlan | None:
        return None

    def decode_attention(
        self,
        q: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        page_table: Tensor,
        context_lens: Tensor,
        scale: float,
        window: int,
        plan: DecodePlan | None = None,
        out: Tensor | None = None,
    ) -> Tensor:
        def attend(out: Tensor, *given: Any) -> Tensor:
            return REFERENCE.decode_attention(*given, scale, window, out=out)

        out = torch.empty_like(q) if out is None else out
        launch_one(attend, out, q, k_cache, v_cache, page_table, context_lens)
        return out

    def prefill_attention(self, q: Tensor, *rest: Any) -> Tensor:
        return _queue(torch.empty_like(q), REFERENCE.prefill_attention, q, *rest)

    def attend_tiles(self, *given: Any) -> None:
        launch_one(REFERENCE.attend_tiles, *given)

    def sample(self, logits: Tensor, *rest: Tensor) -> Tensor:
        return _queue(rest[-1].new_empty(len(logits)), REFERENCE.sample, logits, *rest)

    def gather_slots(
        self, slots: SlotTensors, which: Tensor, prompts: PromptRows | None, width: int, page_size: int
    ) -> StepRows:
        rows = len(which)
        made = StepRows(
            token_ids=which.new_empty(rows),
            positions=which.new_empty(rows),
            places=which.new_empty(rows),
            page_table=slots.page_table.new_empty((rows, width)),
            context_lens=slots.page_table.new_empty(rows),
        )

        def gather(*given: Any) -> None:
            into, of = given[:5], given[5:14]
            told = PromptRows(*given[15:]) if prompts else None
            of_rows = REFERENCE.gather_slots(SlotTensors(*of), given[14], told, width, page_size)
            for target, value in zip(into, _fields(of_rows), strict=True):
                target.copy_(value)

        launch_one(gather, *_fields(made), *_fields(slots), which, *(_fields(prompts) if prompts else ()))
        return made

    def sample_slots(self, logits: Tensor, slots: SlotTensors, which: Tensor, ids: Tensor, filtered: bool) -> None:
        def sample(logits: Tensor, which: Tensor, ids: Tensor, *of: Tensor) -> None:
            REFERENCE.sample_slots(logits, SlotTensors(*of), which, ids, filtered)

        launch_one(sample, logits, which, ids, *_fields(slots))

    def log_probs(self, logits: Tensor, chosen: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
        rows = len(logits)
        made = (
            logits.new_empty(rows, dtype=torch.float32),
            chosen.new_empty((rows, k)),
            logits.new_empty((rows, k), dtype=torch.float32),
        )

        def compute(*given: Tensor) -> None:
            for target, value in zip(given[:3], REFERENCE.log_probs(*given[3:], k), strict=True):
                target.copy_(value)

        launch_one(compute, *made, logits, chosen)
        return made


class QueuedLinear:
    """Packed when it is first used, by which time its weight is there."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.weight, self.bias = weight, bias
        self._packed: Linear | None = None

    def __call__(self, x: Tensor) -> Tensor:
        def multiply(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
            self._packed = self._packed or REFERENCE.pack_linear(weight, bias)
            return self._packed(x)

        return _queue(x.new_empty((len(x), len(self.weight))), multiply, x, self.weight, self.bias)


def _queue(out: Tensor, compute: Callable[..., Tensor], *given: Any) -> Tensor:
    """`compute`, whose result is written to `out`."""

    def write(out: Tensor, *given: Any) -> None:
        out.copy_(compute(*given))

    launch_one(write, out, *given)
    return out


def launch_one(kernel: Callable[..., Any], *given: Any) -> None:
    tensor = next(one for one in given if isinstance(one, DeviceTensor))
    launch(tensor.machine, kernel, given, {})


def _fields(record: Any) -> tuple[Tensor, ...]:
    """In order."""
    return tuple(getattr(record, name) for name in record.__dataclass_fields__)


def load(device: torch.device, *given: Any, **options: Any) -> Kernels:
    """`kernels.interface.load`, which knows nothing of a pretended GPU."""
    return Queued() if device.type == "cuda" else interface.load(device, *given, **options)
