"""Environments of child processes."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from app.child_environment import SECRET_VARIABLES
from app.engine_client import engine_process
from app.options import OPTIONS
from app.text import tokenizer_files


@pytest.fixture
def environments(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, str]]:
    """Return the environments given to child processes; none of the processes is really started."""
    started: list[dict[str, str]] = []
    for name in SECRET_VARIABLES:
        monkeypatch.setenv(name, "secret")
    monkeypatch.setenv("CAROUSEL_TEST_VALUE", "kept")

    def start(*_: object, env: dict[str, str], **__: object) -> SimpleNamespace:
        started.append(env)
        return SimpleNamespace(returncode=0, stdout=b"{}", stderr=b"")

    monkeypatch.setattr(subprocess, "Popen", start)
    monkeypatch.setattr(subprocess, "run", start)
    return started


def test_no_child_process_is_given_a_key(environments):
    """Neither the engine nor the tokenizer conversion gets one, and other variables are passed on."""
    descriptor = SimpleNamespace(fileno=lambda: 0)
    engine_process._spawn(descriptor, descriptor, "text")
    tokenizer_files.run_conversion(Path("folder"))
    assert len(environments) == 2
    for environment in environments:
        assert "secret" not in environment.values()
        assert (environment["CAROUSEL_TEST_VALUE"], environment["PATH"]) == ("kept", os.environ["PATH"])


def test_every_key_option_is_a_secret():
    """A key option that is added later cannot be forgotten."""
    assert {option.variable for option in OPTIONS if option.key.endswith("_key")} <= SECRET_VARIABLES
