"""The planted bugs fit the code as it is."""

from __future__ import annotations

import pytest

from tests.conftest import ROOT
from tests.planted.bugs import BUGS, Bug


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_bug_can_be_planted(bug: Bug):
    """Its text is in its file once, and its tests exist.."""
    assert (ROOT / bug.file).read_text().count(bug.old) == 1
    assert bug.old != bug.new and all((ROOT / test).exists() for test in bug.tests)


def test_there_are_twenty_bugs():
    """Their names differ."""
    assert len({bug.name for bug in BUGS}) == len(BUGS) >= 20
