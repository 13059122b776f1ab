"""Lengths in a model's configuration, and the length of a comparison that can reveal their effect.

A few tokens can be given any positions, so rotary embeddings are compared at the end of the context at little cost. A
window shows only in sequences that are longer than it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from engine.execution.models.rope_parameters import rope_entries, text_sections

LENGTH_KEY = re.compile("window|local|context|length|seq|chunk|span|block_size|original_max")
# The longest comparison computes four tokens for each one of its length. Its cost is bounded in parameters x tokens:
# 5e11 take about ten seconds on two cores. More than 2,048 tokens take too much memory in attention without a cache.
MAX_PROBE_COST = 5e11
MAX_PROBE_TOKENS = 2048
MAX_LENGTHS = 16  # if there are more, the shortest are omitted


def named_lengths(config: Mapping[str, Any], max_position: int) -> dict[str, int]:
    """Return every number of config.json that may be a length below `max_position`, by its key, shortest first."""
    sections = [*text_sections(config), *((f"{key}.", entry) for key, entry in rope_entries(config))]
    found = {
        f"{prefix}{key}": value
        for prefix, section in sections
        for key, value in section.items()
        if LENGTH_KEY.search(key) and type(value) is int and 1 < value < max_position
    }
    return dict(sorted(found.items(), key=lambda item: item[1])[-MAX_LENGTHS:])


def longest_probe(num_parameters: int) -> int:
    """Return the maximum tokens of a comparison for a model of that size."""
    return min(MAX_PROBE_TOKENS, int(MAX_PROBE_COST / (4 * max(1, num_parameters))))
