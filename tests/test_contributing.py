"""CONTRIBUTING.md names files and folders that exist."""

from __future__ import annotations

import re

from tests.conftest import ROOT

PATH = re.compile(r"`((?:app|engine|kernels|tests|docs|static|benchmarks)/[\w./-]*)`")


def test_every_path_of_the_recipes_exists():
    """A renamed file is renamed there too."""
    paths = PATH.findall((ROOT / "CONTRIBUTING.md").read_text())
    assert len(paths) > 20
    assert [path for path in paths if not (ROOT / path).exists()] == []
