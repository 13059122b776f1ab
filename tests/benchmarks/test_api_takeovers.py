"""A killed API process of several under every kind of answer over HTTP, in short."""

from __future__ import annotations

import asyncio

from benchmarks.api_takeovers import OPTIONS, measure
from benchmarks.serving import Serving


def test_no_answer_is_lost_or_changed_by_a_kill_of_one_of_several_api_processes():
    """Two of each kind, in progress at the same time, and none is generated twice."""
    with Serving(*OPTIONS, "--served-model-name", "demo") as server:
        rows = asyncio.run(measure(server, kills=2, streams=18))
    for row in rows:
        counts = {name: row[name] for name in ("failed", "changed", "out_of_order", "ran_twice")}
        assert counts == dict.fromkeys(counts, 0), row
