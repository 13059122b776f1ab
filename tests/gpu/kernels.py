"""Fast kernels for the emulated GPU: torch's reference kernels, each queued like a launch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from kernels.decoder import Linear
from kernels.interface import Kernels
from kernels.load import load as load_kernels
from kernels.paging import PagedKV
from kernels.plans import DecodePlan, RopeInputs, RopePlan
from kernels.quantization import LinearWeight, dense_weight
from kernels.reference.backend import ReferenceKernels
from kernels.slots import DraftRows, PromptRows, SamplingTensors, SlotMasks, SlotTensors, StepRows
from tests.gpu.tensors import DeviceTensor, launch

REFERENCE = ReferenceKernels()
Tensors = tuple[Tensor, ...]


class QueuedKernels(ReferenceKernels):
    """`kernels.interface.Kernels` on the device of the given tensors. Rows are batch-invariant where the reference
    kernels are: in float32."""

    @property
    def robust_to_noisy_cores(self) -> bool:
        return True

    @staticmethod
    def set_threads(threads: int) -> None:
        torch.set_num_threads(1)  # more threads gain nothing at this size

    def pack_linear(self, weight: LinearWeight, bias: Tensor | None) -> Linear:
        return QueuedLinear(dense_weight(weight), bias)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return _queue(torch.empty_like(x), REFERENCE.rms_norm, x, weight, eps)

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        rows, outputs = gate_up.shape
        return _queue(gate_up.new_empty((rows, outputs // 2)), REFERENCE.silu_mul, gate_up)

    def plan_rope(self, cos_sin: Tensor, positions: Tensor, slot_mapping: Tensor, kv: PagedKV) -> RopePlan | None:
        return None

    def rope_and_cache(self, q: Tensor, k: Tensor, v: Tensor, kv: PagedKV, rope: RopeInputs) -> Tensor:
        def rotate(q: Tensor, k: Tensor, v: Tensor, kv_fields: Tensors, rope_fields: tuple[Any, ...]) -> Tensor:
            return REFERENCE.rope_and_cache(q, k, v, PagedKV(*kv_fields), RopeInputs(*rope_fields))

        out = torch.empty_like(q, memory_format=torch.contiguous_format)
        return _queue(out, rotate, q, k, v, _fields(kv), _fields(rope))

    def write_cache(self, k: Tensor, v: Tensor, slot_mapping: Tensor, kv: PagedKV) -> None:
        def write(k: Tensor, v: Tensor, slot_mapping: Tensor, kv_fields: Tensors) -> None:
            REFERENCE.write_cache(k, v, slot_mapping, PagedKV(*kv_fields))

        _launch(write, k, v, slot_mapping, _fields(kv))

    def plan_decode(self, *args: Any) -> DecodePlan | None:
        return None

    def decode_attention(
        self,
        q: Tensor,
        kv: PagedKV,
        page_table: Tensor,
        context_lens: Tensor,
        scale: float,
        window: int,
        plan: DecodePlan | None = None,
        out: Tensor | None = None,
    ) -> Tensor:
        def attend(out: Tensor, q: Tensor, kv_fields: Tensors, *tables: Tensor) -> Tensor:
            return REFERENCE.decode_attention(q, PagedKV(*kv_fields), *tables, scale, window, out=out)

        out = torch.empty_like(q) if out is None else out
        _launch(attend, out, q, _fields(kv), page_table, context_lens)
        return out

    def prefill_attention(self, q: Tensor, kv: PagedKV, *rest: Any) -> Tensor:
        def attend(q: Tensor, kv_fields: Tensors, *rest: Any) -> Tensor:
            return REFERENCE.prefill_attention(q, PagedKV(*kv_fields), *rest)

        return _queue(torch.empty_like(q), attend, q, _fields(kv), *rest)

    def attend_tiles(self, q: Tensor, kv: PagedKV, *rest: Any) -> None:
        def attend(q: Tensor, kv_fields: Tensors, *rest: Any) -> None:
            REFERENCE.attend_tiles(q, PagedKV(*kv_fields), *rest)

        _launch(attend, q, _fields(kv), *rest)

    def sample(self, logits: Tensor, sampling: SamplingTensors) -> Tensor:
        def compute(logits: Tensor, *fields: Tensor) -> Tensor:
            return REFERENCE.sample(logits, SamplingTensors(*fields))

        return _queue(sampling.positions.new_empty(len(logits)), compute, logits, *_fields(sampling))

    def gather_slots(
        self, slots: SlotTensors, slot_ids: Tensor, given: PromptRows | DraftRows | None, width: int, page_size: int
    ) -> StepRows:
        rows = len(slot_ids)
        made = StepRows(
            token_ids=slot_ids.new_empty(rows),
            positions=slot_ids.new_empty(rows),
            slot_mapping=slot_ids.new_empty(rows),
            page_table=slots.page_table.new_empty((rows, width)),
            context_lens=slots.page_table.new_empty(rows),
        )

        def gather(into: Tensors, slot_fields: Tensors, slot_ids: Tensor, given_fields: Tensors) -> None:
            rows = REFERENCE.gather_slots(
                SlotTensors(*slot_fields),
                slot_ids,
                type(given)(*given_fields) if given is not None else None,
                width,
                page_size,
            )
            for target, value in zip(into, _fields(rows), strict=True):
                target.copy_(value)

        _launch(gather, _fields(made), _fields(slots), slot_ids, _fields(given) if given else ())
        return made

    def draft_slots(
        self, slots: SlotTensors, slot_ids: Tensor, limits: Tensor, drafts: Tensor, matches: Tensor
    ) -> None:
        def look_up(slot_fields: Tensors, *rest: Tensor) -> None:
            REFERENCE.draft_slots(SlotTensors(*slot_fields), *rest)

        _launch(look_up, _fields(slots), slot_ids, limits, drafts, matches)

    def mask_slots(self, logits: Tensor, masks: SlotMasks, slot_ids: Tensor) -> None:
        def mask(logits: Tensor, mask_fields: Tensors, slot_ids: Tensor) -> None:
            REFERENCE.mask_slots(logits, SlotMasks(*mask_fields), slot_ids)

        _launch(mask, logits, _fields(masks), slot_ids)

    def sample_slots(
        self,
        logits: Tensor,
        slots: SlotTensors,
        slot_ids: Tensor,
        ids: Tensor,
        filtered: bool,
        drafts: DraftRows | None = None,
    ) -> None:
        def sample(logits: Tensor, slot_fields: Tensors, slot_ids: Tensor, ids: Tensor, draft_fields: Tensors) -> None:
            rows = DraftRows(*draft_fields) if draft_fields else None
            REFERENCE.sample_slots(logits, SlotTensors(*slot_fields), slot_ids, ids, filtered, rows)

        _launch(sample, logits, _fields(slots), slot_ids, ids, _fields(drafts) if drafts else ())

    def log_probs(self, logits: Tensor, chosen: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
        rows = len(logits)
        made = (
            logits.new_empty(rows, dtype=torch.float32),
            chosen.new_empty((rows, k)),
            logits.new_empty((rows, k), dtype=torch.float32),
        )

        def compute(into: Tensors, logits: Tensor, chosen: Tensor) -> None:
            for target, value in zip(into, REFERENCE.log_probs(logits, chosen, k), strict=True):
                target.copy_(value)

        _launch(compute, made, logits, chosen)
        return made


class QueuedLinear:
    """Linear layer that packs its weight on first use, when the device has produced the weight."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.weight, self.bias = weight, bias
        self._packed: Linear | None = None

    def __call__(self, x: Tensor) -> Tensor:
        def multiply(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
            self._packed = self._packed or REFERENCE.pack_linear(weight, bias)
            return self._packed(x)

        return _queue(x.new_empty((len(x), len(self.weight))), multiply, x, self.weight, self.bias)


def _queue(out: Tensor, compute: Callable[..., Tensor], *args: Any) -> Tensor:
    """Queue `compute` and write its result to `out`."""

    def write(out: Tensor, *args: Any) -> None:
        out.copy_(compute(*args))

    _launch(write, out, *args)
    return out


def _launch(kernel: Callable[..., Any], *args: Any) -> None:
    """Queue a kernel on the device of its first device tensor."""
    tensor = next(one for one in args if isinstance(one, DeviceTensor))
    launch(tensor.machine, kernel, args, {})


def _fields(record: Any) -> Tensors:
    """Return the fields of a dataclass in order."""
    return tuple(getattr(record, name) for name in record.__dataclass_fields__)


def load(device: torch.device, *args: Any, **options: Any) -> Kernels:
    """Replace `kernels.load.load`, slot_ids does not support the emulated GPU."""
    return QueuedKernels() if device.type == "cuda" else load_kernels(device, *args, **options)
