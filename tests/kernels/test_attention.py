"""Decode and prefill attention agree with attention in float64, computed head by head."""

from __future__ import annotations

from itertools import pairwise
from unittest.mock import patch

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernels.interface import Kernels
from kernels.paging import PagedKV
from kernels.plans import SplitDecodePlan
from kernels.query_tiles import MAX_TILE_QUERIES, query_tiles
from kernels.triton import decode_attention, decode_tasks
from kernels.triton.skinny_gemm import MAX_ALWAYS_ROWS
from tests.kernels.conftest import DEVICE, half_precision
from tests.kernels.paged import make_paged, naive_attention, naive_rows
from tests.profiles import examples

# kv heads, group, head size, page size, window, context lengths. They include odd sizes, page borders, and both sides
# of a split, which has 64 positions for few rows and 256 for more.
DECODE_SHAPES = [
    pytest.param(1, 1, 16, 4, 0, (1, 4, 5), id="smallest"),
    pytest.param(3, 3, 64, 32, 0, (1, 31, 32, 33, 290), id="three heads to one"),
    pytest.param(2, 4, 80, 16, 0, (255, 257), id="head size 80"),
    pytest.param(1, 20, 32, 8, 0, (70, 9), id="more heads than a tile has rows"),
    pytest.param(2, 8, 128, 16, 0, (17,), id="one row"),
    pytest.param(2, 2, 32, 16, 5, (1, 4, 5, 6, 100), id="window of 5"),
    pytest.param(1, 2, 64, 32, 300, (290, 300, 301, 600), id="window over splits"),
    pytest.param(1, 2, 16, 48, 20, (100, 300), id="pages that do not divide a tile"),
    pytest.param(2, 2, 16, 128, 70, (63, 64, 129, 400), id="a window over pages of two blocks"),
    pytest.param(1, 2, 16, 64, 0, (4095, 4096, 4097, 4400, 12), id="more splits than are combined at a time"),
    pytest.param(1, 2, 16, 64, 400, (4700, 900), id="a window over splits that are combined apart"),
    pytest.param(1, 2, 16, 32, 0, (1, 63, 64, 65, 255, 256, 257, 513, 700), id="more rows than few"),
    pytest.param(1, 2, 16, 32, 300, (1, 64, 255, 256, 257, 299, 301, 513, 900), id="a window, more rows than few"),
]


@pytest.mark.parametrize(("kv_heads", "group", "head_dim", "page_size", "window", "contexts"), DECODE_SHAPES)
def test_decode_attention_equals_naive(
    kernels: Kernels,
    device: torch.device,
    kv_heads: int,
    group: int,
    head_dim: int,
    page_size: int,
    window: int,
    contexts: tuple[int, ...],
) -> None:
    """A decode row is its query's attention over its own context, although all other cache entries are NaN."""
    paged = make_paged(contexts, kv_heads, head_dim, page_size, device=device, spare_width=3)
    torch.manual_seed(1)
    plan = kernels.plan_decode(paged.page_table, paged.lengths, kv_heads * group, paged.kv, window)
    q = torch.randn(len(contexts), kv_heads * group, head_dim, device=device)
    args = (q, paged.kv, paged.page_table, paged.lengths, 0.3, window)
    out = kernels.decode_attention(*args, plan)
    for row, context in enumerate(contexts):
        keys, values = paged.contiguous[row]
        expected = naive_attention(q[row], keys, values, context - 1, 0.3, window)
        torch.testing.assert_close(out[row].cpu().double(), expected, atol=1e-5, rtol=1e-5)


# ..., chunks as (context, queries).
PREFILL_SHAPES = [
    pytest.param(1, 1, 16, 4, 0, ((1, 1),), id="one token"),
    pytest.param(3, 3, 64, 32, 0, ((32, 32), (33, 1), (40, 7)), id="three heads to one"),
    pytest.param(1, 4, 80, 16, 0, ((67, 65),), id="head size 80"),
    pytest.param(1, 2, 128, 16, 0, ((290, 33),), id="late chunk"),
    pytest.param(2, 2, 32, 16, 5, ((70, 70), (4, 4), (40, 3)), id="window of 5"),
    pytest.param(1, 2, 64, 32, 260, ((330, 70),), id="window over tiles"),
    pytest.param(1, 2, 16, 48, 20, ((100, 9),), id="pages that do not divide a tile"),
    pytest.param(2, 2, 16, 64, 0, ((65, 3), (128, 70), (200, 1)), id="pages of two blocks"),
    pytest.param(1, 2, 16, 128, 50, ((300, 140),), id="a window over pages of four blocks"),
]


@pytest.mark.parametrize(("kv_heads", "group", "head_dim", "page_size", "window", "chunks"), PREFILL_SHAPES)
def test_prefill_attention_equals_naive(
    kernels: Kernels,
    device: torch.device,
    kv_heads: int,
    group: int,
    head_dim: int,
    page_size: int,
    window: int,
    chunks: tuple[tuple[int, int], ...],
) -> None:
    """A query of a chunk attends to its own position and earlier ones within the window, and to nothing else."""
    contexts = tuple(context for context, _ in chunks)
    paged = make_paged(contexts, kv_heads, head_dim, page_size, device=device, spare_width=3)
    starts = [0]
    for _, queries in chunks:
        starts.append(starts[-1] + queries)
    torch.manual_seed(1)
    q = torch.randn(starts[-1], kv_heads * group, head_dim, device=device)
    args = (paged.kv, paged.page_table, tuple(starts), contexts, 0.3, window)
    out = kernels.prefill_attention(q, *args)
    for row, (context, queries) in enumerate(chunks):
        rows = slice(starts[row], starts[row + 1])
        expected = naive_rows(q[rows], paged, row, range(context - queries, context), 0.3, window)
        torch.testing.assert_close(out[rows].cpu().double(), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("kv_heads", "group", "head_dim", "page_size", "window", "chunks"), PREFILL_SHAPES)
def test_tiles_of_a_table_equal_chunks(
    kernels: Kernels,
    device: torch.device,
    kv_heads: int,
    group: int,
    head_dim: int,
    page_size: int,
    window: int,
    chunks: tuple[tuple[int, int], ...],
) -> None:
    """Results are bitwise equal in any rows of a larger step, with a page table row per query. No other row is written,
    and neither is any by tiles without queries."""
    contexts = tuple(context for context, _ in chunks)
    paged = make_paged(contexts, kv_heads, head_dim, page_size, device=device, spare_width=3)
    starts = [0]
    for _, queries in chunks:
        starts.append(starts[-1] + queries)
    before, after, total = 3, 2, starts[-1]
    torch.manual_seed(1)
    q = torch.randn(before + total + after, kv_heads * group, head_dim, device=device)
    args = (paged.kv, paged.page_table, tuple(starts), contexts, 0.3, window)
    expected = kernels.prefill_attention(q[before : before + total], *args)
    of_row = torch.zeros(len(q), dtype=torch.int64)
    for chunk, (first, last) in enumerate(pairwise(starts)):
        of_row[before + first : before + last] = chunk
    table = paged.page_table[of_row.to(device)]
    tiles = query_tiles(
        (before + first, before + first, last - first, context - (last - first))
        for (first, last), context in zip(pairwise(starts), contexts, strict=True)
    )
    assert all(0 < queries <= MAX_TILE_QUERIES for _, _, queries, _ in tiles)
    named = torch.tensor([*tiles, (0, 0, 0, 0), (0, 0, 0, 0)], dtype=torch.int32, device=device)
    out = torch.full_like(q, 7.0)
    kernels.attend_tiles(q, paged.kv, table, named, out, 0.3, window)
    assert torch.equal(out[before : before + total], expected)
    assert bool((out[:before] == 7.0).all()) and bool((out[before + total :] == 7.0).all())


@pytest.mark.usefixtures("separate_rows")
@pytest.mark.parametrize("window", [0, 100])
def test_a_query_has_the_same_bits_in_every_tile(triton_kernels: Kernels, device: torch.device, window: int) -> None:
    """Bits do not depend on blocks that are hidden from neighbouring rows, or come after all of them."""
    paged = make_paged((300,), 1, 64, 64, dtype=half_precision(), device=device)
    torch.manual_seed(1)
    q = torch.randn(140, 4, 64, device=device).to(half_precision()) * 2
    caches = (paged.kv, paged.page_table)
    whole = triton_kernels.prefill_attention(q, *caches, (0, 140), (300,), 0.3, window)
    for cut in (1, 37, 100):
        first = triton_kernels.prefill_attention(q[:cut], *caches, (0, cut), (160 + cut,), 0.3, window)
        rest = triton_kernels.prefill_attention(q[cut:], *caches, (0, 140 - cut), (300,), 0.3, window)
        assert torch.equal(torch.cat((first, rest)), whole)


def test_a_row_without_context_is_not_written(kernels: Kernels, device: torch.device) -> None:
    """Prompt tokens beside decode rows have no decode context, and another kernel writes their rows."""
    paged = make_paged((9, 20, 70, 300), 2, 32, 8, device=device)
    torch.manual_seed(1)
    q = torch.randn(4, 4, 32, device=device)
    expected = kernels.decode_attention(q, paged.kv, paged.page_table, paged.lengths, 0.2, 0)
    for without in ([1], [0, 2], [0, 1, 2, 3]):
        lengths = paged.lengths.clone()
        lengths[without] = 0
        out = torch.full_like(q, 7.0)
        args = (paged.kv, paged.page_table, lengths, 0.2, 0)
        assert kernels.decode_attention(q, *args, out=out) is out
        others = [row for row in range(4) if row not in without]
        assert torch.equal(out[others], expected[others])
        assert bool((out[without] == 7.0).all())


@pytest.mark.parametrize("window", [0, 300])
def test_a_wider_table_changes_no_bit(triton_kernels: Kernels, device: torch.device, window: int) -> None:
    """The splits of a row are combined in one order, alone and beside a row of ten times as many."""
    paged = make_paged((700, 4900), 2, 16, 64, device=device)
    torch.manual_seed(1)
    q = torch.randn(2, 4, 16, device=device) * 3
    both = triton_kernels.decode_attention(q, paged.kv, paged.page_table, paged.lengths, 0.3, window)
    alone = triton_kernels.decode_attention(
        q[:1], paged.kv, paged.page_table[:1, :11].contiguous(), paged.lengths[:1], 0.3, window
    )
    assert torch.equal(both[:1], alone)


@given(
    st.lists(st.sampled_from([0, 1, 63, 64, 65, 256, 257, 4096, 4097, 5000]), min_size=1, max_size=12),
    st.sampled_from([0, 70, 300]),
    st.sampled_from([4, 64]),
)
@settings(max_examples=examples(20), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_split_is_listed_once(
    triton_kernels: Kernels, device: torch.device, contexts: list[int], window: int, listed: int
) -> None:
    """Tasks are listed in order, for rows with and without context, in one block of the list or several."""
    lengths = torch.tensor(contexts, dtype=torch.int32, device=device)
    table = torch.zeros((len(contexts), 80), dtype=torch.int32, device=device)
    with patch.object(decode_tasks, "LIST_BLOCK", listed):
        plan = triton_kernels.plan_decode(
            table, lengths, 4, PagedKV(*torch.zeros(2, 1, 2, 64, 16, device=device)), window
        )
    assert isinstance(plan, SplitDecodePlan)
    expected = []
    for row, context in enumerate(contexts):
        size = 256 if context > 4096 or len(contexts) > MAX_ALWAYS_ROWS else 64
        first = max(context - window, 0) if window else 0
        expected += [[row, split, first, context, size] for split in range(first // size, -(-context // size))]
    count = int(plan.num_tasks)
    assert plan.tasks[:, :count].T.tolist() == expected


@pytest.mark.parametrize("window", [0, 300])
@pytest.mark.parametrize("programs", [1, 3])
def test_the_number_of_programs_changes_no_bit(
    triton_kernels: Kernels, device: torch.device, monkeypatch: pytest.MonkeyPatch, programs: int, window: int
) -> None:
    """There is one program per task, or one for all."""
    paged = make_paged((700, 0, 4900, 64), 2, 16, 64, device=device)
    q = torch.randn(4, 4, 16, device=device)
    args = (q, paged.kv, paged.page_table, paged.lengths, 0.3, window)
    out = torch.zeros_like(q)
    monkeypatch.setattr(decode_attention, "multiprocessors", lambda device: 1)
    monkeypatch.setattr(decode_attention, "PROGRAMS_PER_MULTIPROCESSOR", 1000)
    expected = triton_kernels.decode_attention(*args, out=out).clone()
    monkeypatch.setattr(decode_attention, "PROGRAMS_PER_MULTIPROCESSOR", 2 * programs)
    assert torch.equal(triton_kernels.decode_attention(*args, out=torch.zeros_like(q)), expected)


def test_one_plan_serves_every_layer(triton_kernels: Kernels, device: torch.device) -> None:
    """Arrival counters start at zero for every layer: with one split, a few, and more than are combined at once."""
    paged = make_paged((40, 300, 1300), 2, 16, 64, device=device)
    plan = triton_kernels.plan_decode(paged.page_table, paged.lengths, 4, paged.kv, 0)
    torch.manual_seed(1)
    for _ in range(3):
        q = torch.randn(3, 4, 16, device=device)
        args = (q, paged.kv, paged.page_table, paged.lengths, 0.3, 0)
        planned, alone = triton_kernels.decode_attention(*args, plan), triton_kernels.decode_attention(*args)
        assert torch.equal(planned, alone)
        assert isinstance(plan, SplitDecodePlan) and not plan.arrived.any()


@pytest.mark.device
@pytest.mark.skipif(DEVICE.type == "cpu", reason="needs a CUDA device")
@pytest.mark.parametrize("rows", [1, 3, 64])
def test_the_last_split_combines_the_results_of_all(triton_kernels: Kernels, rows: int) -> None:
    """Hundreds of repetitions over memory with other contents are bitwise equal to the first."""
    paged = make_paged(tuple(range(900, 900 + 17 * rows, 17)), 8, 64, 64, dtype=torch.bfloat16, device=DEVICE)
    plan = triton_kernels.plan_decode(paged.page_table, paged.lengths, 32, paged.kv, 0)
    q = torch.randn(rows, 32, 64, device=DEVICE).bfloat16()  # by ordinary kernels, which run after the plan's
    args = (paged.kv, paged.page_table, paged.lengths, 0.125, 0)
    first = triton_kernels.decode_attention(q, *args, plan)
    for _ in range(300):
        triton_kernels.decode_attention(-q, *args, plan)
        assert torch.equal(triton_kernels.decode_attention(q, *args, plan), first)


def test_half_precision_attention_stays_close(kernels: Kernels, device: torch.device) -> None:
    """In float16 attention is as close to the exact one as float16 allows."""
    paged = make_paged((40, 300), 2, 64, 16, dtype=torch.float16, device=device)
    torch.manual_seed(1)
    q = torch.randn(2, 6, 64, device=device).half()
    out = kernels.decode_attention(q, paged.kv, paged.page_table, paged.lengths, 0.125, 0)
    chunk = (paged.kv, paged.page_table, (0, 1, 2), (40, 300), 0.125, 0)
    for result in (out, kernels.prefill_attention(q, *chunk)):
        assert result.dtype == torch.float16
        for row, context in enumerate((40, 300)):
            expected = naive_attention(q[row], *paged.contiguous[row], context - 1, 0.125, 0)
            torch.testing.assert_close(result[row].cpu().double(), expected, atol=2e-3, rtol=5e-3)


@pytest.mark.skipif(half_precision() != torch.bfloat16, reason="the interpreter multiplies no bfloat16")
@pytest.mark.parametrize(("head_dim", "group", "window"), [(64, 4, 0), (128, 2, 70)])
def test_attention_in_bfloat16_stays_close(
    triton_kernels: Kernels, device: torch.device, head_dim: int, group: int, window: int
) -> None:
    """In bfloat16 attention is as close to the exact one as bfloat16 allows: with one split and several, with full and
    partial tiles."""
    contexts, queries, scale = (40, 300), (7, 70), head_dim**-0.5
    paged = make_paged(contexts, 1, head_dim, 64, dtype=torch.bfloat16, device=device)
    torch.manual_seed(1)
    q = torch.randn(sum(queries), group, head_dim, device=device).bfloat16()
    caches = (paged.kv, paged.page_table)
    decoded = triton_kernels.decode_attention(q[:2], *caches, paged.lengths, scale, window)
    for row, context in enumerate(contexts):
        expected = naive_attention(q[row], *paged.contiguous[row], context - 1, scale, window)
        torch.testing.assert_close(decoded[row].cpu().double(), expected, atol=8e-3, rtol=1.6e-2)
    out = triton_kernels.prefill_attention(q, *caches, (0, 7, 77), contexts, scale, window)
    for row, (rows, context) in enumerate(zip((slice(0, 7), slice(7, 77)), contexts, strict=True)):
        expected = naive_rows(q[rows], paged, row, range(context - queries[row], context), scale, window)
        torch.testing.assert_close(out[rows].cpu().double(), expected, atol=8e-3, rtol=1.6e-2)


def test_a_strided_query_is_read_correctly(kernels: Kernels, device: torch.device) -> None:
    """Rows of a larger batch may be passed as a slice of it."""
    paged = make_paged((9, 20), 2, 32, 8, device=device)
    torch.manual_seed(1)
    q = torch.randn(5, 4, 32, device=device)
    args = (paged.kv, paged.page_table, paged.lengths, 0.2, 0)
    torch.testing.assert_close(
        kernels.decode_attention(q[3:], *args), kernels.decode_attention(q[3:].clone(), *args), atol=0, rtol=0
    )


@pytest.mark.parametrize("window", [0, 20])
def test_the_references_create_tensors_on_the_device_of_their_inputs(
    reference_kernels: Kernels, device: torch.device, window: int
) -> None:
    """With another default device, tensors are created on the device of the inputs and attention is unchanged."""
    paged = make_paged((9, 300), 2, 32, 8, device=device)
    q = torch.randn(2, 4, 32, device=device)
    args = (q, paged.kv, paged.page_table)
    decode, prefill = (*args, paged.lengths, 0.2, window), (*args, (0, 1, 2), (9, 300), 0.2, window)
    expected = reference_kernels.decode_attention(*decode), reference_kernels.prefill_attention(*prefill)
    with torch.device("meta"):
        plan = reference_kernels.plan_decode(paged.page_table, paged.lengths, 4, paged.kv, window)
        found = reference_kernels.decode_attention(*decode), reference_kernels.prefill_attention(*prefill)
    assert plan is not None
    for group in plan.groups:
        made = (group.key_rows, group.hidden, group.value_rows)
        assert {tensor.device for tensor in made} == {paged.page_table.device}
    assert all(map(torch.equal, found, expected))
