"""The sampler's filters agree with a row-by-row implementation, and it is correctly distributed and batch-invariant."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from kernels.interface import Kernels
from kernels.reference.noise import column_hash, gumbel, row_keys
from kernels.reference.sample import NAN_TOKEN, filter_threshold
from kernels.slots import SamplingTensors, SlotRecord, as_bytes
from kernels.triton import filters
from tests.kernels.conftest import cpu_kernels
from tests.kernels.threshold_kernel import searched, tallies, threshold
from tests.profiles import NIGHTLY, PROFILE, examples, nightly

WIDE = (3 if PROFILE == NIGHTLY else 1) * 8192  # columns of whole slices in a wide row
SUPPRESSED_CHECKS = [HealthCheck.function_scoped_fixture]  # back ends have no state that could outlive a test


def parameters(rows: int, device: torch.device | None = None, **given: float | list[float] | Tensor) -> SamplingTensors:
    """Return sampling parameters for `rows` rows; a scalar applies to all. Unnamed ones are disabled, the temperature
    is 1."""
    records, positions = np.zeros(rows, SlotRecord), np.zeros(rows, np.int64)
    for name, value in ({"temperature": 1.0, "top_p": 1.0} | given).items():
        column = positions if name == "position" else records[name]
        column[:] = np.asarray(value).astype(column.dtype)
    return SamplingTensors(torch.from_numpy(as_bytes(records)).to(device), torch.from_numpy(positions).to(device))


def naive_kept(
    logits: list[float], temperature: float, top_k: int, top_p: float, min_p: float, top_n_sigma: float = 0.0
) -> set[int]:
    """Return the columns that one row's filters keep, by sorting Python floats."""
    scaled = [(torch.tensor(x) / torch.tensor(temperature)).item() for x in logits]
    largest = max(scaled)
    weights = {column: math.exp(x - largest) for column, x in enumerate(scaled)}
    kept = {column for column, weight in weights.items() if weight >= min_p}
    if top_n_sigma:
        lowest = largest - top_n_sigma * statistics.pstdev(x for x in scaled if math.isfinite(x))
        assume(all(abs(x - lowest) > 1e-5 for x in scaled) or len(set(scaled)) == 1)
        kept = {column for column in kept if scaled[column] >= torch.tensor(lowest).item()}
    if 0 < top_k < len(logits):
        smallest = sorted(weights.values(), reverse=True)[top_k - 1]
        kept = {column for column in kept if weights[column] >= smallest}
    if top_p < 1:
        target = top_p * sum(weights[column] for column in kept)
        mass, smallest = 0.0, 0.0
        for column in sorted(kept, key=lambda column: -weights[column]):
            if mass > 0 and mass >= target:
                break
            # Sums within the last bits of the target are ambiguous, unless all terms are equal and so exact.
            assume(abs(mass + weights[column] - target) > 1e-6 or len(set(weights.values())) == 1)
            mass, smallest = mass + weights[column], weights[column]
        kept = {column for column in kept if weights[column] >= smallest}
    return kept


# A coarse grid makes ties common.
LOGITS = st.lists(st.integers(-12, 12).map(lambda n: n / 4), min_size=1, max_size=40)
FILTERS = {
    "temperature": st.sampled_from([0.25, 0.7, 1.0, 1.5]),
    "top_k": st.integers(0, 45),
    "top_p": st.sampled_from([0.0, 0.1, 0.5, 0.9, 0.99, 1.0]).map(lambda p: torch.tensor(p).item()),
    "min_p": st.sampled_from([0.0, 0.02, 0.3, 1.0]).map(lambda p: torch.tensor(p).item()),
}


@settings(max_examples=examples(150))
@given(logits=LOGITS, **FILTERS)
@example(logits=[0.0] * 10, temperature=1.0, top_k=0, top_p=0.5, min_p=0.0)
@example(logits=[1.0, 0.0, 0.0, 0.0], temperature=1.0, top_k=2, top_p=1.0, min_p=0.0)
def test_filters_keep_the_same_columns_as_a_sorted_list(
    logits: list[float], temperature: float, top_k: int, top_p: float, min_p: float
):
    """min_p, then top_k with all ties, then top_p on the rest keep the same set as a naive implementation."""
    row = torch.tensor([logits, [0.0] * len(logits)])  # a neighbour, to be ignored
    given = parameters(2, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    scaled = row / given.field("temperature").unsqueeze(1)
    threshold = filter_threshold(scaled, given)
    kept = set((scaled[0] >= threshold[0]).nonzero().flatten().tolist())
    assert kept == naive_kept(logits, temperature, top_k, top_p, min_p)


WITHIN = st.sampled_from([0.3, 0.75, 1.3, 2.9]).map(lambda n: torch.tensor(n).item())


@settings(max_examples=examples(150))
@given(logits=LOGITS, forbidden=st.integers(0, 3), top_n_sigma=WITHIN, **FILTERS)
@example(logits=[1.0] * 7, forbidden=0, top_n_sigma=1.0, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
def test_top_n_sigma_is_the_first_filter_and_ignores_forbidden_tokens(
    logits: list[float],
    forbidden: int,
    top_n_sigma: float,
    temperature: float,
    top_k: int,
    top_p: float,
    min_p: float,
):
    """The kept set is that of Python's statistics; tokens with a logit of minus infinity do not widen it."""
    logits = [*logits, *[-math.inf] * forbidden]
    row = torch.tensor([logits, [0.0] * len(logits)])  # a neighbour, to be ignored
    filters = {"top_k": top_k, "top_p": top_p, "min_p": min_p, "top_n_sigma": top_n_sigma}
    given = parameters(2, temperature=temperature, **filters)
    scaled = row / given.field("temperature").unsqueeze(1)
    kept = set((scaled[0] >= filter_threshold(scaled, given)[0]).nonzero().flatten().tolist())
    assert kept == naive_kept(logits, temperature, **filters)


@pytest.mark.parametrize("V", [1, 15, 4096, pytest.param(9 * 1024 + 5, marks=nightly)])
def test_all_back_ends_keep_the_same_tokens_within_n_standard_deviations(
    kernels: Kernels, reference_kernels: Kernels, device: torch.device, V: int
):
    """Rows are flat and steep, near zero and far from it, with forbidden tokens, alone and with other filters."""
    generator = torch.Generator().manual_seed(V)
    rows = 12
    logits = torch.randn(rows, V, generator=generator) * torch.linspace(0, 9, rows).unsqueeze(1)
    logits[::2] += 300
    logits[1::3, : V // 2] = -math.inf
    given = parameters(
        rows,
        temperature=[0.6, 1.0, 3.0] * 4,
        top_n_sigma=[0.0, 0.5, 1.0, 1.5, 2.5, 4.0] * 2,
        top_k=[0, 0, 0, 30] * 3,
        top_p=[1.0, 1.0, 0.9] * 4,
        min_p=[0.0] * 8 + [0.05] * 4,
        position=torch.arange(rows),
    )
    expected = reference_kernels.sample(logits, given)
    assert kernels.sample(logits.to(device), given.to(device)).tolist() == expected.tolist()


def test_the_kept_set_of_top_n_sigma_does_not_depend_on_the_temperature(reference_kernels: Kernels):
    """At any temperature the same tokens are within n standard deviations of the largest."""
    logits = torch.randn(1, 3000, generator=torch.Generator().manual_seed(5)) * 3
    kept = set()
    for temperature in (0.3, 1.0, 50.0):
        given = parameters(1, temperature=temperature, top_n_sigma=1.0)
        scaled = logits / given.field("temperature").unsqueeze(1)
        kept.add(tuple((scaled >= filter_threshold(scaled, given)).flatten().tolist()))
    assert len(kept) == 1 and 1 < sum(kept.pop()) < 3000


@settings(max_examples=examples(12), suppress_health_check=SUPPRESSED_CHECKS)
@given(logits=LOGITS, **FILTERS)
def test_only_kept_tokens_are_sampled(
    kernels: Kernels,
    device: torch.device,
    logits: list[float],
    temperature: float,
    top_k: int,
    top_p: float,
    min_p: float,
):
    """For any noise, a token outside the filters' set is never chosen; a single kept token always is."""
    kept = naive_kept(logits, temperature, top_k, top_p, min_p)
    rows = 3
    row = torch.tensor([logits] * rows, device=device)
    position = torch.arange(rows)
    given = parameters(rows, device, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, position=position)
    assert set(kernels.sample(row, given).tolist()) <= kept


@pytest.mark.parametrize("V", [1, 2, 1000, 2049, 5000])
def test_temperature_zero_takes_the_first_of_the_largest(kernels: Kernels, device: torch.device, V: int):
    """Greedy rows ignore every other parameter; among equal logits the lowest ID wins, also across blocks."""
    logits = torch.zeros(3, V, device=device)
    logits[1, [V // 2, V - 1]] = 5.0
    logits[2, V - 1] = 1e-3
    given = parameters(3, device, temperature=0.0, top_k=3, top_p=0.5, min_p=0.1, seed=torch.tensor([1, 2, 3]))
    assert kernels.sample(logits, given).tolist() == [0, V // 2, V - 1]


def test_minus_infinity_is_never_sampled(kernels: Kernels, device: torch.device):
    """Forbidden tokens are never sampled, with or without filters."""
    logits = torch.full((12, 50), -math.inf, device=device)
    logits[:, [3, 40]] = torch.tensor([0.0, -1.0], device=device)
    position = torch.arange(12)
    top_p = [1.0, 0.999, 0.5] * 4
    ids = kernels.sample(logits, parameters(12, device, position=position, top_p=top_p, top_k=[0, 5] * 6))
    assert set(ids.tolist()) == {3, 40}


def test_all_back_ends_sample_the_same_tokens(kernels: Kernels, reference_kernels: Kernels, device: torch.device):
    """IDs are equal for rows of every kind, with an odd vocabulary of more than one block."""
    torch.manual_seed(0)
    R, V = 16, 4099  # two blocks and a remainder
    logits = torch.randn(R, V) * 3
    given = parameters(
        R,
        temperature=[0.0, 0.5, 1.0, 2.0] * 4,
        top_k=[0, 0, 1, 5, 0, 50, 4098, 4099] * 2,
        top_p=[1.0] * 8 + [0.9, 0.5, 1.0, 0.95, 0.3, 0.01, 0.999, 0.7],
        min_p=[0.0] * 4 + [0.1, 0.02] + [0.0] * 10,
        seed=torch.randint(-(2**63), 2**63 - 1, (R,)),
        position=torch.arange(R) * 1000,
        choice=torch.arange(R) % 3,
    )
    expected = reference_kernels.sample(logits, given)
    on_device = given.to(device)
    assert kernels.sample(logits.to(device), on_device).tolist() == expected.tolist()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_logits_are_sampled_as_in_float32(kernels: Kernels, device: torch.device, dtype: torch.dtype):
    """The same numbers give the same IDs in any dtype."""
    torch.manual_seed(0)
    logits = (torch.randn(8, 2100, device=device) * 3).to(dtype)
    given = parameters(8, device, temperature=[0.0, 0.7, 1.0, 1.3] * 2, top_k=[0] * 6 + [50, 3], top_p=[1.0, 0.9] * 4)
    assert torch.equal(kernels.sample(logits, given), kernels.sample(logits.float(), given))


@pytest.mark.parametrize(
    "given_filters",
    [
        {"top_p": 0.5},
        pytest.param({"top_p": 0.0}, marks=nightly),
        {"top_p": 0.99999},
        pytest.param({"top_k": 1}, marks=nightly),
        {"top_k": 17},
        {"top_k": WIDE + 76},
        {"top_k": 900, "top_p": 0.8},
        pytest.param({"min_p": 0.05, "top_p": 0.7}, marks=nightly),
        {"min_p": 0.5, "top_k": 30, "top_p": 0.95, "temperature": 1.7},
        pytest.param({"min_p": 0.3, "temperature": 0.6}, marks=nightly),
        pytest.param({"top_n_sigma": 1.2}, marks=nightly),
        {"top_n_sigma": 2.0, "top_k": 900, "top_p": 0.9},
    ],
    ids=str,
)
def test_a_threshold_is_that_of_a_sorted_row(
    given_filters: dict[str, float], device: torch.device, monkeypatch: pytest.MonkeyPatch
):
    """The search covers whole slices and a remainder. Rows are flat and steep, across zero and far from it, with many
    equal and forbidden logits. Thresholds keep one column, nearly all, and all of some equal ones."""
    torch.manual_seed(0)
    V = WIDE + 77
    logits = torch.stack(
        [
            torch.randn(V) * 3,
            torch.randn(V) * 0.01 + 20,  # distinguished by the last step's bits
            torch.randn(V) * 1e-3,  # both signs, exponents of all sizes
            (torch.randn(V) * 4).round() / 2,  # a few dozen values
            torch.full((V,), -1.5),
            (torch.randn(V) * 2).masked_fill(torch.rand(V) < 0.5, -math.inf),
        ]
    )
    monkeypatch.setattr(filters, "PROGRAMS", 4 * len(logits))  # an interpreter's time grows with programs, not blocks
    given = parameters(len(logits), **given_filters)
    found = threshold(logits.to(device), given.to(device)).cpu()
    scaled = logits / given.field("temperature").unsqueeze(1)
    before = filter_threshold(scaled, parameters(len(logits), **{**given_filters, "top_p": 1.0}))
    for row, least, got in zip(scaled, before, found, strict=True):
        if "top_p" not in given_filters:
            assert torch.equal(row >= got, row >= least)
            continue
        share = (row - row.max()).double().exp().masked_fill(row < least, 0.0)
        target = given_filters["top_p"] * share.sum()
        assert got in row
        # Sums within the last bits of the target are ambiguous.
        assert share[row >= got].sum() >= target * (1 - 1e-7)
        assert share[row > got].sum() <= target * (1 + 1e-7)


@pytest.fixture
def uninitialised() -> Iterator[None]:
    """Fill uninitialised memory with NaN and the largest integers."""
    torch.use_deterministic_algorithms(True, warn_only=True)  # the reference's sums are not deterministic on a GPU
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("uninitialised")
def test_a_row_is_sampled_the_same_by_any_number_of_programs(
    kernels: Kernels, reference_kernels: Kernels, device: torch.device, monkeypatch: pytest.MonkeyPatch
):
    """One program computes the whole row, or several compute some blocks each, the last one fewer: rows with filters,
    without, and greedy ones."""
    torch.manual_seed(0)
    rows, V = 9, (9 if PROFILE == NIGHTLY else 3) * 1024 + 5
    logits = torch.randn(rows, V) * 3
    given = parameters(
        rows,
        temperature=[1.0] * 8 + [0.0],
        top_k=[0, 0, 5, 40, 900, 5, 60, 0, 5],
        top_p=[0.9, 0.3, 1.0, 1.0, 0.8, 0.5, 0.99, 1.0, 0.9],
        position=torch.arange(rows),
    )
    expected = reference_kernels.sample(logits, given).tolist()
    on_device = given.to(device)
    for programs, each in ((1, 1), (3 * rows, 3), (100 * rows, -(-V // 1024))):
        monkeypatch.setattr(filters, "PROGRAMS", programs)
        assert filters.programs_per_row(rows, V) == each
        assert kernels.sample(logits.to(device), on_device).tolist() == expected


def test_a_column_that_cannot_be_among_the_largest_is_not_counted(device: torch.device):
    """For a flat and a steep row the search of top_k counts hardly more columns than it keeps."""
    torch.manual_seed(0)
    logits = torch.randn(2, WIDE + 77) * torch.tensor([[0.5], [8.0]])
    counts = tallies(searched(logits.to(device), parameters(2, device, top_k=10)))
    for step in range(filters.STEPS.value):
        counted = counts[:, 0, step].sum(dim=1)
        assert (counted >= 1).all()
        assert (counted <= 15).all()


def test_columns_of_negligible_weight_are_counted_together(device: torch.device):
    """For a steep row the search of top_p adds up a few columns individually, and the rest together."""
    torch.manual_seed(0)
    logits = torch.randn(1, WIDE + 77) * 8
    logits[0, 5] = logits.max() + 5
    first = tallies(searched(logits.to(device), parameters(1, device, top_p=0.9)))[0, 1, 0]
    assert 0 < first[-1] < first.sum() / 100
    assert (first > 0).sum() < 10


def test_an_irrelevant_block_is_not_read(device: torch.device):
    """A block with small group maxima is not read, regardless of its contents."""
    logits = torch.zeros(1, 4 * 1024, device=device)
    logits[0, 1024:2048] = 9.0
    scratch = torch.zeros_like(filters.new_scratch(1, logits.shape[1], device))
    maxima = scratch[:, filters.MAXIMA.value :].view(torch.float32)
    maxima[0, 4:8] = -math.inf
    maxima[0, 0] = 1.0
    logits[0, 7] = 1.0
    slot_ids = torch.zeros(1, dtype=torch.int64, device=device)
    filters.weigh(logits, parameters(1, device, top_k=1).records, slot_ids, scratch)
    assert tallies(scratch)[0, 0].sum(dim=1).tolist() == [1, 1, 1]


@pytest.fixture(params=["reference", "cpu"])
def on_cpu(request: pytest.FixtureRequest, reference_kernels: Kernels) -> Kernels:
    """Return each back end that is fast enough for thousands of rows."""
    return reference_kernels if request.param == "reference" else cpu_kernels()


def test_a_row_does_not_depend_on_other_rows(on_cpu: Kernels):
    """A row samples the same token alone, in a batch and in another order, with or without filters."""
    torch.manual_seed(0)
    R, V = 40, 3000
    logits = torch.randn(R, V) * torch.linspace(0, 4, R).unsqueeze(1)
    given = parameters(
        R,
        temperature=[0.0, 0.8, 1.0, 1.0, 1.3] * 8,
        top_k=[0, 0, 7, 0] * 10,
        top_p=[1.0, 0.9, 0.6, 0.999] * 10,
        min_p=[0.0, 0.05] * 20,
        seed=torch.arange(R) * 77777,
    )
    together = on_cpu.sample(logits, given)
    order = torch.randperm(R)
    for rows in [*torch.arange(R).unsqueeze(1), order, order[:7], order[7:9]]:
        assert torch.equal(on_cpu.sample(logits[rows], given.select(rows)), together[rows])


PROBABILITIES = torch.tensor([0.4, 0.25, 0.15, 0.1, 0.06, 0.03, 0.009, 0.001])
CRITICAL = {
    8: 26.1,
    4: 18.5,
    3: 16.3,
}  # chi-square at 0.999 would be 24.3, 16.3, 13.8; seeds are fixed


@pytest.mark.parametrize("varied", ["seed", "position", "choice"])
@pytest.mark.parametrize(
    ("kept", "filters"),
    [(8, {}), (4, {"top_k": 4}), (3, {"top_p": 0.7}), (4, {"min_p": 0.2}), (8, {"temperature": 2.0})],
    ids=["none", "top_k", "top_p", "min_p", "temperature"],
)
def test_tokens_are_sampled_with_their_probabilities(
    on_cpu: Kernels, varied: str, kept: int, filters: dict[str, float]
):
    """Over consecutive seeds, positions or choices the tokens' counts fit the filtered distribution (chi-square)."""
    rows = 20_000
    logits = PROBABILITIES.log().expand(rows, -1).contiguous()
    given = parameters(rows, **{"seed": 7, varied: torch.arange(rows)}, **filters)
    counts = on_cpu.sample(logits, given).bincount(minlength=8)
    expected_counts = PROBABILITIES.double() ** (1 / filters.get("temperature", 1.0))
    expected_counts = expected_counts[:kept] / expected_counts[:kept].sum() * rows
    assert int(counts[kept:].sum()) == 0
    assert float(((counts[:kept] - expected_counts) ** 2 / expected_counts).sum()) < CRITICAL[kept]


@pytest.mark.parametrize("spread", [0.0, 0.3, 3.0, 30.0])
def test_pruning_does_not_change_the_winner(on_cpu: Kernels, spread: float):
    """Exact noise is computed only for tokens that can still win, and the winner equals that of exact noise for all."""
    torch.manual_seed(0)
    rows, V = 300, 2000
    logits = torch.randn(rows, V) * spread
    given = parameters(rows, position=torch.arange(rows), seed=5)
    key_a, key_b = row_keys(given.field("seed"), given.positions, given.field("choice"))
    full = logits + gumbel(column_hash(torch.arange(V), key_a.unsqueeze(1), key_b.unsqueeze(1)))
    assert torch.equal(on_cpu.sample(logits, given), full.argmax(dim=-1))


@pytest.mark.parametrize("V", [31, 3000, 151936])
def test_selection_agrees_with_sorting(reference_kernels: Kernels, V: int):
    """The compiled sampler and the sorting one agree for large vocabularies, flat and steep rows, many equal logits,
    and filters that keep one, few and nearly all."""
    generator = torch.Generator().manual_seed(V)
    rows = 60
    logits = torch.randn(rows, V, generator=generator) * torch.linspace(0, 12, rows).unsqueeze(1)
    logits[::3] = logits[::3].mul(2).round().div(2)
    given = parameters(
        rows,
        temperature=[0.3, 0.7, 1.0, 1.0, 1.7] * 12,
        top_k=[0, 1, 40, V - 1, V, 0] * 10,
        top_p=[1.0, 0.999, 0.9, 0.3] * 15,
        min_p=[0.0, 0.0, 0.05, 0.0, 1.0, 0.0] * 10,
        seed=torch.arange(rows) * 7919,
        position=torch.arange(rows),
    )
    assert torch.equal(cpu_kernels().sample(logits, given), reference_kernels.sample(logits, given))


# Triton's interpreter computes with numpy, which warns of NaN; a GPU does not.
ignore_nan_warnings = pytest.mark.filterwarnings(
    "ignore:invalid value encountered:RuntimeWarning", "ignore:All-NaN:RuntimeWarning"
)


@ignore_nan_warnings
@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize(
    "columns",
    [pytest.param(slice(None), marks=nightly), slice(0, 1), slice(2099, 2100)],
    ids=["all", "first", "last"],
)
@pytest.mark.parametrize("filters", [{}, {"top_p": 0.9, "top_k": 20, "min_p": 0.01}], ids=["plain", "filtered"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_with_nan_is_broken_and_no_other_is(
    kernels: Kernels, device: torch.device, temperature: float, filters: dict, columns: slice, sign: float
):
    """A row with one NaN anywhere, of either sign, has no token, and other rows are not affected."""
    torch.manual_seed(0)
    logits = torch.randn(3, 2100, device=device)
    given = parameters(3, device, temperature=temperature, position=torch.arange(3), **filters)
    expected = kernels.sample(logits, given)
    logits[1, columns] = math.copysign(math.nan, sign)
    assert kernels.sample(logits, given).tolist() == [int(expected[0]), NAN_TOKEN, int(expected[2])]


@ignore_nan_warnings
def test_a_row_without_allowed_tokens_gives_its_first_token(kernels: Kernels, device: torch.device):
    """A row with all tokens forbidden is not NaN and gives an ID of the vocabulary."""
    logits = torch.full((6, 5000), -math.inf, device=device)
    filters = {"top_k": [0, 0, 5, 0, 0, 5], "top_p": [1.0, 1.0, 1.0, 0.9, 1.0, 0.9], "min_p": [0.0] * 4 + [0.1] * 2}
    given = parameters(6, device, temperature=[0.0] + [1.0] * 5, **filters)
    assert kernels.sample(logits, given).tolist() == [0] * 6
