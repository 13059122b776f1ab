"""Page-table lookup inside a kernel; `kernels.paging` describes the memory layout of the cache."""

# Kernel pointers have no Python type; the comment next to each parameter gives its shape and dtype.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# ruff: noqa: ANN001, ANN201

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def cache_rows(
    table,  # [P] int32, pages of one sequence
    block,  # first position, a multiple of BLOCK, inside the sequence
    known,  # [BLOCK] bool, positions that have a page
    kv_head,
    page_rows,  # rows of D values from one page to the next
    PAGE_SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Return the cache rows of a block of positions, [BLOCK] int64, in rows of D values; undefined without a page."""
    offsets = tl.arange(0, BLOCK)
    if PAGE_SIZE % BLOCK == 0:
        # One page holds the block: keys wait for a single table entry, and rows are consecutive.
        page = tl.load(table + block // PAGE_SIZE).to(tl.int64)
        return page * page_rows + kv_head * PAGE_SIZE + block % PAGE_SIZE + offsets
    positions = block + offsets
    pages = tl.load(table + positions // PAGE_SIZE, mask=known, other=0).to(tl.int64)
    return pages * page_rows + kv_head * PAGE_SIZE + positions % PAGE_SIZE
