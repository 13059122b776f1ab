"""Where a kernel finds a block of positions in the paged cache; `kernels.paging` says how that lies in memory."""

# Pointers of a kernel have no Python type; a comment beside each says what it points to.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# ruff: noqa: ANN001, ANN201

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def cache_rows(
    table,  # [P] int32, the pages of one sequence
    block,  # the first position, a multiple of BLOCK, inside the sequence
    known,  # [BLOCK] bool, positions that have a page
    kv_head,
    page_rows,  # of D numbers, from one page to the next
    PAGE_SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """-> [BLOCK] int64, rows of D numbers from the beginning of the cache; any where there is no page."""
    places = tl.arange(0, BLOCK)
    if PAGE_SIZE % BLOCK == 0:
        # One page holds them all: a single number is waited for before keys can be asked for, and rows ascend by one.
        page = tl.load(table + block // PAGE_SIZE).to(tl.int64)
        return page * page_rows + kv_head * PAGE_SIZE + block % PAGE_SIZE + places
    positions = block + places
    pages = tl.load(table + positions // PAGE_SIZE, mask=known, other=0).to(tl.int64)
    return pages * page_rows + kv_head * PAGE_SIZE + positions % PAGE_SIZE
