"""Fixtures of the tests of the server."""

from __future__ import annotations

import pytest

from app import convert_tokenizer, tokenizer_files


@pytest.fixture
def without_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Convert tokenizers here, where transformers is loaded already, instead of in a child process."""
    monkeypatch.setattr(tokenizer_files, "run_conversion", lambda path: convert_tokenizer.convert(str(path)))
