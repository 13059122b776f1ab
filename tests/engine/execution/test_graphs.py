"""Which steps are recorded."""

from __future__ import annotations

from itertools import pairwise

import pytest

from engine.execution.graphs import page_widths, row_counts


@pytest.mark.parametrize("least", [1, 16])
@pytest.mark.parametrize("most", [1, 2, 3, 7, 8, 9, 32, 33, 100, 256, 768, 1536])
def test_a_recording_fits_any_number_of_rows_without_doubling_it(least: int, most: int):
    """Ascending, and all rows at the end. Nobody shares a step with more empty rows than there are others; nor, where
    each of them costs, with more than a quarter as many."""
    counts = list(row_counts(least, most))
    assert counts[0] == min(least, most) and counts[-1] == most
    assert all(smaller < larger <= 2 * smaller for smaller, larger in pairwise(counts))
    assert all(larger <= 1.25 * smaller for smaller, larger in pairwise(counts) if smaller >= 256)


@pytest.mark.parametrize(("max_len", "page_size"), [(1, 16), (100, 32), (512, 32), (513, 16), (4096, 64), (4097, 7)])
def test_a_recording_fits_any_context(max_len: int, page_size: int):
    """Ascending, and the widest holds the longest context and no page more."""
    widths = page_widths(max_len, page_size)
    assert all(smaller < larger <= 2 * smaller for smaller, larger in pairwise(widths))
    assert (widths[-1] - 1) * page_size < max_len <= widths[-1] * page_size
