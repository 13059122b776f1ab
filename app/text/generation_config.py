"""Recommendations of a checkpoint's generation_config.json: sampling parameters, and the tokens that end a text.

An entry that no request could use is ignored with a warning: it is an error in one line of a file, and the model can be
served without it.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from app.text.checkpoint_files import read_json

log = logging.getLogger("carousel.text")

GENERATION_CONFIG_FILE = "generation_config.json"
AUTO_CONFIG, NO_CONFIG = "auto", "none"  # use the checkpoint's file; recommend no sampling parameters
# The range of each sampling parameter that a checkpoint may recommend, as for requests.
SAMPLING = {
    "temperature": (0.0, 2.0),
    "top_p": (1e-9, 1.0),
    "top_k": (-1, 2**31 - 1),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (1e-6, 10.0),
}


def config_file(folder: Path, choice: str) -> Path:
    """Return the file that `--generation-config` chooses: "auto", "none", a file, or a folder that has one."""
    if choice in (AUTO_CONFIG, NO_CONFIG):
        return folder / GENERATION_CONFIG_FILE
    return Path(choice) / GENERATION_CONFIG_FILE if Path(choice).is_dir() else Path(choice)


def sampling_defaults(file: Path) -> dict[str, float]:
    """Return the sampling parameters in `file` that are within their ranges (as vLLM applies them)."""
    config = read_json(file)
    values: dict[str, float] = {}
    for name, (minimum, maximum) in SAMPLING.items():
        value = config.get(name)
        if value is None:
            continue
        kinds = int if name == "top_k" else int | float
        if isinstance(value, bool) or not isinstance(value, kinds) or not minimum <= value <= maximum:
            log.warning("%s: %s must be between %g and %g, got %r; it is ignored", file, name, minimum, maximum, value)
        else:
            values[name] = max(0, value) if name == "top_k" else value
    return values


def end_ids(files: tuple[Path, ...], vocab_size: int) -> list[int]:
    """Return the end-of-text ids of the first of `files` that names any."""
    for file in files:
        value = read_json(file).get("eos_token_id")
        if value is None:
            continue
        given = value if isinstance(value, list) else [value]
        known = [token_id for token_id in given if _is_id(token_id, vocab_size)]
        for token_id in given:
            if token_id not in known:
                log.warning(
                    "%s: eos_token_id must be a token id below %d, got %r; it is ignored", file, vocab_size, token_id
                )
        if known or not given:
            return known
    return []


def _is_id(value: Any, vocab_size: int) -> bool:
    return type(value) is int and 0 <= value < vocab_size
