"""Fixtures and helpers for tests of the GPU benchmark."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from benchmarks.device import Device
from benchmarks.engines import Build
from benchmarks.sections import Sections
from benchmarks.shapes import TINY

CPU = torch.device("cpu")
BUILD = Build(TINY, slots=4, budget=64, page_size=16)


@pytest.fixture(scope="module")
def device() -> Device:
    return Device(CPU)


def endless(works: Callable[[], bool] = lambda: True) -> Sections:
    """Return sections with a generous time limit."""
    return Sections(lambda so_far: None, 600.0, works=works)
