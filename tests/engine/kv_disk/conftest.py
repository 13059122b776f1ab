"""Fixtures of the tests of pages on disk."""

from __future__ import annotations

import os

import pytest


@pytest.fixture(autouse=True)
def no_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not wait for the disk, which other tests use too."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
