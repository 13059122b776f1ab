"""Recommendations of a checkpoint's generation_config.json: sampling parameters, and the tokens that end a text.

An entry that no request could use is ignored with a warning: it is an error in one line of a file, and the model can be
served without it.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from engine.model_files.folder import GENERATION_CONFIG_FILE, read_document
from engine.model_files.interface import Document, ModelFiles

log = logging.getLogger("carousel.text")

AUTO_CONFIG, NO_CONFIG = "auto", "none"  # use the checkpoint's file; recommend no sampling parameters
# The range of each sampling parameter that a checkpoint may recommend, as for requests.
SAMPLING = {
    "temperature": (0.0, 2.0),
    "top_p": (1e-9, 1.0),
    "top_k": (-1, 2**31 - 1),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (1e-6, 10.0),
}


def read_config(files: ModelFiles, choice: str) -> Document:
    """Return the document that `--generation-config` chooses: "auto", "none", a file, or a folder that has one."""
    return files.generation_config() if choice in (AUTO_CONFIG, NO_CONFIG) else read_document(config_file(choice))


def config_file(choice: str) -> Path:
    """Return the file that a path chooses: itself, or the file of a folder."""
    return Path(choice) / GENERATION_CONFIG_FILE if Path(choice).is_dir() else Path(choice)


def sampling_defaults(config: Document) -> dict[str, float]:
    """Return the sampling parameters in `config` that are within their ranges (as vLLM applies them)."""
    values: dict[str, float] = {}
    for name, (minimum, maximum) in SAMPLING.items():
        value = config.content.get(name)
        if value is None:
            continue
        kinds = int if name == "top_k" else int | float
        if isinstance(value, bool) or not isinstance(value, kinds) or not minimum <= value <= maximum:
            message = "%s: %s must be between %g and %g, got %r; it is ignored"
            log.warning(message, config.file, name, minimum, maximum, value)
        else:
            values[name] = max(0, value) if name == "top_k" else value
    return values


def end_ids(configs: tuple[Document, ...], vocab_size: int) -> list[int]:
    """Return the end-of-text ids of the first of `configs` that names any."""
    for config in configs:
        value = config.content.get("eos_token_id")
        if value is None:
            continue
        given = value if isinstance(value, list) else [value]
        known = [token_id for token_id in given if _is_id(token_id, vocab_size)]
        for token_id in given:
            if token_id not in known:
                log.warning(
                    "%s: eos_token_id must be a token id below %d, got %r; it is ignored",
                    *(config.file, vocab_size, token_id),
                )
        if known or not given:
            return known
    return []


def _is_id(value: Any, vocab_size: int) -> bool:
    return type(value) is int and 0 <= value < vocab_size
