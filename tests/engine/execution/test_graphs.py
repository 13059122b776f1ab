"""Row counts and page widths of recorded steps."""

from __future__ import annotations

from itertools import pairwise

import pytest

from engine.execution.graphs import page_widths, row_counts


@pytest.mark.parametrize("smallest", [1, 16])
@pytest.mark.parametrize("largest", [1, 2, 3, 7, 8, 9, 32, 33, 100, 256, 768, 1536])
def test_a_recording_fits_any_number_of_rows_without_doubling_it(smallest: int, largest: int):
    """Counts ascend and end with all rows. At most half of a step's rows are padding, and from 256 rows on, where
    padding costs time, at most a fifth."""
    counts = list(row_counts(smallest, largest))
    assert counts[0] == min(smallest, largest) and counts[-1] == largest
    assert all(smaller < larger <= 2 * smaller for smaller, larger in pairwise(counts))
    assert all(larger <= 1.25 * smaller for smaller, larger in pairwise(counts) if smaller >= 256)


@pytest.mark.parametrize(("max_len", "page_size"), [(1, 16), (100, 32), (512, 32), (513, 16), (4096, 64), (4097, 7)])
def test_a_recording_fits_any_context(max_len: int, page_size: int):
    """Widths ascend, and the largest holds the longest context without an extra page."""
    widths = page_widths(max_len, page_size)
    assert all(smaller < larger <= 2 * smaller for smaller, larger in pairwise(widths))
    assert (widths[-1] - 1) * page_size < max_len <= widths[-1] * page_size
