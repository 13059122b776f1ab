"""Masks of the tokens that constrained sequences may sample, applied to logits in place."""

# Kernel pointers have no Python type; the comment next to each parameter gives its shape and dtype.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# ruff: noqa: ANN001, ANN202

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from kernels.slots import SlotMasks
from kernels.triton.pdl import pdl_options, wait_for_previous

BLOCK = 4096  # logits of one program
NUM_WARPS = 4


@triton.jit
def _mask_slots_kernel(
    logits,  # [B, V] any float
    is_masked,  # [slots + 1] int32
    words,  # [slots + 1, ceil(V / 32)] int32
    slot_ids,  # [B] int64, slot of each row
    V,
    BLOCK: tl.constexpr,
    USE_PDL: tl.constexpr,
):
    """Forbid tokens in one block of one row, if its slot is masked."""
    wait_for_previous(USE_PDL)
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slot_ids + row)
    if tl.load(is_masked + slot) != 0:
        columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        inside = columns < V
        bits = tl.load(words + slot * tl.cdiv(V, 32) + columns // 32, mask=inside, other=-1)
        is_forbidden = ((bits >> (columns % 32)) & 1) == 0
        tl.store(logits + row * V + columns, float("-inf"), mask=inside & is_forbidden)


def mask_slots(logits: Tensor, masks: SlotMasks, slot_ids: Tensor) -> None:
    """Mask the logits of the slots slot_ids[B] int64; see `kernels.interface.Kernels.mask_slots`."""
    B, V = logits.shape
    _mask_slots_kernel[(B, triton.cdiv(V, BLOCK))](
        logits,
        masks.is_masked,
        masks.words,
        slot_ids,
        V,
        BLOCK=BLOCK,
        num_warps=NUM_WARPS,
        **pdl_options(logits.device),
    )
