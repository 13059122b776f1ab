"""In float32 on a CPU a row's attention is bitwise independent of the rest of the batch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from kernels.interface import Kernels
from kernels.paging import PagedKV
from kernels.plans import RopeInputs
from kernels.reference.backend import ReferenceKernels
from kernels.reference.decode_attention import decode_attention, plan_decode
from tests.kernels.conftest import attention_rounds, cpu_kernels
from tests.kernels.paged import Paged, make_paged

PAGE_SIZES = [4, 16, 32]
# Query heads per key/value head, and head size: each with small and large partners, and shapes of known models.
HEADS = [(1, 8), (8, 8), (1, 16), (4, 16), (2, 32), (8, 32), (1, 64), (3, 64), (5, 80), (1, 80), (2, 128), (8, 128)]


def rounding_kernels() -> Kernels:
    """Return kernels that round the operands of attention, or skip the test where they do not exist."""
    if not attention_rounds():
        pytest.skip("attention rounds nothing here")
    return cpu_kernels(allow_bf16=True)


@pytest.fixture(
    params=[
        (ReferenceKernels, torch.float32),
        (cpu_kernels, torch.float32),
        (cpu_kernels, torch.bfloat16),
        (rounding_kernels, torch.bfloat16),
    ],
    ids=["reference", "cpu", "cpu, cache in bfloat16", "cpu, rounded, cache in bfloat16"],
)
def back_end(request: pytest.FixtureRequest) -> tuple[Kernels, torch.dtype]:
    """Return each batch-invariant back end and the dtype of its cache."""
    make, dtype = request.param
    return make(), dtype


@pytest.fixture
def exact(back_end: tuple[Kernels, torch.dtype]) -> Kernels:
    """Return the back end alone."""
    return back_end[0]


@pytest.fixture
def make(back_end: tuple[Kernels, torch.dtype]) -> Callable[..., Paged]:
    """Return `make_paged` with the cache dtype. Tests of unsupported head sizes are skipped."""
    kernels, dtype = back_end

    def make(contexts: tuple[int, ...], kv_heads: int, head_dim: int, page_size: int, **more: int) -> Paged:
        if dtype != torch.float32 and not kernels.supports_kv_dtype(dtype, kv_heads, kv_heads, head_dim):
            pytest.skip(f"heads of {head_dim} are not kept in {dtype}")
        return make_paged(contexts, kv_heads, head_dim, page_size, dtype, **more)

    return make


def queries(paged: Paged, group: int, count: int) -> Tensor:
    """Return queries [count, Hq, D]."""
    heads = paged.kv.heads * group
    generator = torch.Generator().manual_seed(9)
    return torch.randn(count, heads, paged.kv.head_dim, generator=generator)


def prefill(kernels: Kernels, q: Tensor, paged: Paged, row: int, context: int, window: int) -> Tensor:
    """Compute the last len(q) positions of one row's context as one chunk."""
    table = paged.page_table[row : row + 1]
    return kernels.prefill_attention(q, paged.kv, table, (0, len(q)), (context,), 0.2, window)


def decode(
    kernels: Kernels,
    q: Tensor,
    paged: Paged,
    rows: list[int],
    contexts: list[int],
    window: int,
    width: int | None = None,
) -> Tensor:
    """Compute one query for each of `rows`, each with its own context length."""
    lengths = torch.tensor(contexts, dtype=torch.int32)
    table = paged.page_table[rows, :width]
    return kernels.decode_attention(q, paged.kv, table, lengths, 0.2, window)


@pytest.mark.parametrize(("group", "head_dim"), HEADS)
def test_a_position_has_the_same_bits_in_every_chunk_and_as_a_decode_row(
    exact: Kernels, make: Callable[..., Paged], group: int, head_dim: int
):
    """A prompt prefilled whole, in chunks of any size, or token by token through decode has the same attention."""
    context = 300
    page_size = PAGE_SIZES[(group + head_dim // 8) % 3]
    paged = make((context,), 2, head_dim, page_size)
    q = queries(paged, group, context)
    for window in (0, 50):
        whole = prefill(exact, q, paged, 0, context, window)
        for size in (1, 2, 3, 7, 63, 65, 256, 299):
            # There are many small chunks: only the first, the last, and those at tile borders are tested.
            border = {*range(5), *range(124, 131), *range(252, 259)}
            tested = [start for start in range(0, context, size) if size > 8 or start in border]
            for start in [*tested, context - size]:
                end = min(start + size, context)
                assert torch.equal(prefill(exact, q[start:end], paged, 0, end, window), whole[start:end]), (size, start)
        positions = [0, 1, 15, 16, 17, 31, 32, 100, 127, 128, 129, 254, 255, 256, 257, 299]
        decoded = decode(
            exact, q[positions], paged, [0] * len(positions), [position + 1 for position in positions], window
        )
        assert torch.equal(decoded, whole[positions])


@pytest.mark.parametrize("head_dim", [16, 64, 80])
def test_a_long_context_has_the_same_bits_in_every_chunk_and_as_decode_rows(
    exact: Kernels, make: Callable[..., Paged], head_dim: int
):
    """The same holds beyond two tiles, where sums over a context are combined from parts."""
    context = 1100
    paged = make((context,), 1, head_dim, 32)
    q = queries(paged, 3, context)
    for window in (0, 400):
        whole = prefill(exact, q, paged, 0, context, window)
        for size in (500, 700):
            for start in range(0, context, size):
                end = min(start + size, context)
                assert torch.equal(prefill(exact, q[start:end], paged, 0, end, window), whole[start:end]), (size, start)
        positions = [511, 512, 513, 767, 768, 1023, 1024, 1099]
        decoded = decode(
            exact, q[positions], paged, [0] * len(positions), [position + 1 for position in positions], window
        )
        assert torch.equal(decoded, whole[positions])


@pytest.mark.parametrize(("window", "page_size"), [(0, 4), (0, 32), (50, 16)])
@pytest.mark.parametrize(("group", "head_dim"), [(1, 16), (1, 80), (3, 64), (8, 128), (5, 32)])
def test_a_decode_row_has_the_same_bits_in_every_batch(
    exact: Kernels, make: Callable[..., Paged], group: int, head_dim: int, page_size: int, window: int
):
    """Attention is equal alone, among rows of any length and order, and with any width of the page table."""
    contexts = (1, 2, 17, 33, 64, 100, 255, 256, 257, 300, 530, 1025)
    paged = make(contexts, 2, head_dim, page_size, spare_width=5)
    q = queries(paged, group, len(contexts))
    rows = list(range(len(contexts)))
    together = decode(exact, q, paged, rows, list(contexts), window)
    for row, context in enumerate(contexts):
        for width in (-(-context // page_size), None):
            alone = decode(exact, q[row : row + 1], paged, [row], [context], window, width)
            assert torch.equal(alone[0], together[row]), (context, width)
    for some in (rows[::-1], rows[3:9], [0, 11], [11, 0, 5], [2] * 20):
        batch = decode(exact, q[some], paged, some, [contexts[row] for row in some], window)
        assert torch.equal(batch, together[some]), some


def test_grouping_rows_by_length_changes_nothing(monkeypatch: pytest.MonkeyPatch):
    """Bits do not depend on the grouping of rows, or on whether the plan was made ahead."""
    import sys

    module = sys.modules[decode_attention.__module__]
    contexts = (5, 700, 6, 90, 100, 350)
    paged = make_paged(contexts, 2, 64, 16)
    q = queries(paged, 3, len(contexts))
    results, group_counts = [], []
    for padding, keys in ((0, 0), (64 << 10, 8 << 20), (1 << 40, 1 << 40)):
        monkeypatch.setattr(module, "PADDING_BYTES_PER_GROUP", padding)
        monkeypatch.setattr(module, "KEY_BYTES_PER_GROUP", keys)
        plan = plan_decode(paged.page_table, paged.lengths, paged.kv, 0)
        group_counts.append(len(plan.groups))
        args = (q, paged.kv, paged.page_table, paged.lengths, 0.2, 0)
        results += [decode_attention(*args, plan), decode_attention(*args)]
    assert group_counts[0] == 6 and 1 < group_counts[1] < 6 and group_counts[2] == 1
    assert all(torch.equal(result, results[0]) for result in results)


@pytest.mark.parametrize("threads", [1, 2])
def test_the_number_of_threads_changes_nothing(exact: Kernels, make: Callable[..., Paged], threads: int):
    """A server that restarts with another number of threads repeats its output."""
    paged = make((300, 20), 2, 64, 16)
    q = queries(paged, 3, 300)
    before = torch.get_num_threads()
    try:
        exact.set_threads(threads)
        result = prefill(exact, q, paged, 0, 300, 0), decode(exact, q[:2], paged, [0, 1], [300, 20], 0)
        exact.set_threads(3 - threads)
        other = prefill(exact, q, paged, 0, 300, 0), decode(exact, q[:2], paged, [0, 1], [300, 20], 0)
    finally:
        exact.set_threads(before)
    assert all(torch.equal(one, two) for one, two in zip(result, other, strict=True))


@pytest.mark.parametrize("width", [1, 30, 64, 80, 576, 1025])
def test_norms_and_gates_have_the_same_bits_in_every_batch(exact: Kernels, width: int):
    """A row's norm and gate do not depend on other rows."""
    generator = torch.Generator().manual_seed(0)
    x, weight = torch.randn(70, 2 * width, generator=generator), torch.randn(2 * width, generator=generator)
    normed, gated = exact.rms_norm(x, weight, 1e-6), exact.silu_mul(x)
    for rows in (1, 2, 3, 8, 31, 64):
        for some in (slice(0, rows), slice(70 - rows, 70)):
            assert torch.equal(exact.rms_norm(x[some], weight, 1e-6), normed[some])
            assert torch.equal(exact.silu_mul(x[some]), gated[some])


@pytest.mark.parametrize(("heads", "dim"), [(1, 16), (3, 64), (2, 80), (4, 128)])
def test_rotated_and_normed_heads_have_the_same_bits_in_every_batch(
    back_end: tuple[Kernels, torch.dtype], heads: int, dim: int
):
    """A row's rotated queries and cache entries do not depend on other rows."""
    exact, dtype = back_end
    generator = torch.Generator().manual_seed(0)
    qkv = torch.randn(70, 4 * heads, dim, generator=generator)
    norms = torch.randn(2, dim, generator=generator)
    angles, positions = torch.randn(100, dim, generator=generator), torch.randperm(100, generator=generator)[:70]

    def run(rows: slice) -> tuple[torch.Tensor, ...]:
        caches = [torch.zeros(5, heads, 16, dim, dtype=dtype) for _ in range(2)]
        q, k, v = (part[rows] for part in qkv.split((2 * heads, heads, heads), dim=1))
        slots = torch.arange(70)[rows]
        rope = RopeInputs(angles, positions[rows], slots, norms[0], norms[1], 1e-6)
        rotated = exact.rope_and_cache(q, k, v, PagedKV(*caches), rope)
        return rotated, *(cache.transpose(1, 2).reshape(-1, heads, dim)[rows] for cache in caches)

    all_rows = run(slice(0, 70))
    for rows in (1, 2, 3, 8, 31, 64):
        for some in (slice(0, rows), slice(70 - rows, 70)):
            assert all(torch.equal(one, all_[some]) for one, all_ in zip(run(some), all_rows, strict=True))
