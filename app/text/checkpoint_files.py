"""The JSON files of a checkpoint folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


class TokenizerError(Exception):
    """The checkpoint has no tokenizer that could be loaded; the message names the folder or the file."""


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file; an empty one if there is no file. Raises `TokenizerError`."""
    try:
        content = json.loads(path.read_bytes()) if path.exists() else {}
    except ValueError as error:
        raise TokenizerError(f"{path}: not JSON: {error}") from None
    if not isinstance(content, dict):
        raise TokenizerError(f"{path}: not a JSON object")
    return content
