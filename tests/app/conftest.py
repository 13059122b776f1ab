"""Fixtures of the server's tests."""

from __future__ import annotations

import pytest

from app.text import convert_tokenizer, tokenizer_files


@pytest.fixture
def without_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Convert tokenizers in this process, which has loaded transformers already, instead of in a child process."""
    monkeypatch.setattr(tokenizer_files, "run_conversion", lambda path: convert_tokenizer.convert(str(path)))
