"""Loads of `benchmarks.peers`: lengths, arrival times and limits."""

from __future__ import annotations

from itertools import pairwise

import pytest

from benchmarks.peers.arrivals import MAX_OUTPUT, MAX_PROMPT, MEAN_OUTPUT, MEAN_PROMPT, LognormalLoad, PoissonLoad
from benchmarks.peers.load import Load, Stream, figures


def test_streams_that_start_together_have_no_limit_and_no_delay():
    """This is the load that other results were measured with."""
    load = Load(3, 0, 4096, prompt=5)
    assert [len(prompt) for prompt in load.prompts] == [5, 5, 5]
    assert (load.starts, load.clients) == ([0.0, 0.0, 0.0], None)


def test_a_closed_loop_has_a_request_in_flight_for_each_client():
    """Lengths are equal in every run, prompts are not."""
    load, other = LognormalLoad(8, 0, 4096), LognormalLoad(8, 1, 4096)
    assert (load.clients, len(load.prompts), len(load.lengths)) == (8, 32, 32)
    assert [len(prompt) for prompt in load.prompts] == load.prompt_lengths == other.prompt_lengths
    assert load.prompts != other.prompts


def test_lognormal_lengths_have_about_the_stated_means_within_their_bounds():
    """Truncation at the longest length lowers the mean slightly."""
    load = LognormalLoad(1000, 0, 4096)
    for lengths, mean, longest in (
        (load.prompt_lengths, MEAN_PROMPT, MAX_PROMPT),
        (load.lengths, MEAN_OUTPUT, MAX_OUTPUT),
    ):
        assert all(2 <= length <= longest for length in lengths)
        assert sum(lengths) / len(lengths) == pytest.approx(mean, rel=0.15)


def test_poisson_arrivals_have_the_stated_rate_and_no_limit():
    """Arrival times are equal for every peer of a run."""
    load = PoissonLoad(1000, 0, 4096, rate=5.0)
    assert load.clients is None
    assert load.starts == PoissonLoad(1000, 0, 4096, rate=5.0).starts
    assert all(before < after for before, after in pairwise(load.starts))
    assert len(load.starts) / load.starts[-1] == pytest.approx(5.0, rel=0.1)


def test_first_tokens_count_from_the_sending_of_each_request():
    """A request that is sent late is not penalised."""
    streams = [Stream([0.1, 0.2], 0.2, 2, [], sent=0.0), Stream([5.3, 5.4], 5.4, 2, [], sent=5.0)]
    measured = figures(streams)
    assert measured["ttft_p50_ms"] == pytest.approx(200)
    assert measured["requests_per_s"] == pytest.approx(2 / 5.4)
