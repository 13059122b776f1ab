"""Profiles of the suite: how many random cases run, and whether the largest sizes do.

`ci` is the default. `make nightly` sets SUITE_PROFILE=nightly and runs everything.
"""

from __future__ import annotations

import os

CI, NIGHTLY = "ci", "nightly"
PROFILES = (CI, NIGHTLY)
PROFILE = os.environ.get("SUITE_PROFILE") or CI
DEFAULT_EXAMPLES = 100  # of a hypothesis test without a number of its own

if PROFILE not in PROFILES:
    raise SystemExit(f"SUITE_PROFILE must be one of {', '.join(PROFILES)}, got {PROFILE!r}")


def examples(count: int) -> int:
    """Return the number of random cases in this profile."""
    return count
