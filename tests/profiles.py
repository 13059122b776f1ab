"""Profiles of the suite: how many random cases run, and whether the largest sizes do.

`ci` is the default. `make nightly` sets SUITE_PROFILE=nightly and runs everything.
"""

from __future__ import annotations

import os
from math import ceil

import pytest

CI, NIGHTLY = "ci", "nightly"
SHARES = {CI: 1 / 3, NIGHTLY: 1.0}  # of all random cases
PROFILE = os.environ.get("SUITE_PROFILE") or CI
DEFAULT_EXAMPLES = 100  # of a hypothesis test without a number of its own

if PROFILE not in SHARES:
    raise SystemExit(f"SUITE_PROFILE must be one of {', '.join(SHARES)}, got {PROFILE!r}")

nightly = pytest.mark.nightly


def examples(count: int) -> int:
    """Return the number of random cases in this profile. `count`: the number in a nightly run."""
    return ceil(count * SHARES[PROFILE])
