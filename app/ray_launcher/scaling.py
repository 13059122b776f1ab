"""How many engines there should be. Pure functions of what API processes report."""

from __future__ import annotations

import re
from collections.abc import Iterable

WANTED_METRIC = re.compile(r"^carousel:replicas_wanted(?:\{.*\})? ([\d.e+]+)$", re.MULTILINE)


def read_wanted(metrics: str) -> int | None:
    """Return the number of engines that an API process wants, from the text of its metrics; None if it has no opinion,
    as before its first engine is ready.
    """
    found = WANTED_METRIC.search(metrics)
    return None if found is None else int(float(found[1]))


def engine_target(wanted: Iterable[int | None], present: int, least: int, most: int) -> int:
    """Return the number of engines that there should be, from `least` to `most`.

    wanted: by each API process, of which the largest number counts. present: the current number, which stays if no API
    process has an opinion.
    """
    number = max((each for each in wanted if each is not None), default=present)
    return min(max(number, least), most)
