"""Which decode steps are recorded."""

from __future__ import annotations

from itertools import pairwise

import pytest

from engine.execution.graphs import page_widths, row_counts


@pytest.mark.parametrize("slots", [1, 2, 3, 7, 8, 9, 32, 33, 100, 256])
def test_a_recording_fits_any_number_of_rows_without_doubling_it(slots: int):
    """Ascending, all slots at the end, and nobody shares a step with more empty rows than there are others."""
    counts = row_counts(slots)
    assert counts[0] == 1 and counts[-1] == slots
    assert all(smaller < larger <= 2 * smaller for smaller, larger in pairwise(counts))


@pytest.mark.parametrize(("max_len", "page_size"), [(1, 16), (100, 32), (512, 32), (513, 16), (4096, 64), (4097, 7)])
def test_a_recording_fits_any_context(max_len: int, page_size: int):
    """Ascending, and the widest holds the longest context and no page more."""
    widths = page_widths(max_len, page_size)
    assert all(smaller < larger <= 2 * smaller for smaller, larger in pairwise(widths))
    assert (widths[-1] - 1) * page_size < max_len <= widths[-1] * page_size
