"""The list of the page's features and its tests hold together."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ROW = re.compile(r"^\| (?P<name>[^|]+) \| (?P<how>[^|]+) \| (?:`(?P<file>[\w.]+)::(?P<test>\w+)` )?\|$", re.MULTILINE)


def test_each_feature_of_the_page_names_a_test_that_exists():
    """One without a test is marked as missing, and none is listed twice."""
    rows = list(ROW.finditer((ROOT / "docs" / "page.md").read_text()))
    assert len(rows) > 34
    assert len({row["name"] for row in rows}) == len(rows)
    for row in rows:
        if row["test"] is None:
            assert row["how"] == "not yet", row["name"]
        else:
            assert f"\ndef {row['test']}(" in (ROOT / "tests" / "e2e" / row["file"]).read_text(), row["name"]
