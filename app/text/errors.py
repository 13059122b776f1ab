"""Error of the files of a model that describe text."""

from __future__ import annotations


class TokenizerError(Exception):
    """The checkpoint has no tokenizer that could be loaded; the message names the folder or the file."""
