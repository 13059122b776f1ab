"""Tokens that a mask forces: those of the only text that it allows."""

from __future__ import annotations

from collections.abc import Sequence as Seq

import numpy as np
from numpy.typing import NDArray

MAX_ALLOWED = 32  # tokens of a mask that are compared


def is_allowed(mask: NDArray[np.int32], token_id: int) -> bool:
    """Return whether mask[ceil(V / 32)] allows a token."""
    return bool(int(mask[token_id >> 5]) >> (token_id & 31) & 1)


def forced_token(mask: NDArray[np.int32], tokens: Seq[bytes]) -> int | None:
    """Return the longest allowed token if all others are beginnings of its text; None if the text may differ.

    A model seldom divides a text otherwise.
    """
    words = np.flatnonzero(mask)
    if not 0 < len(words) <= MAX_ALLOWED:
        return None
    bits = np.unpackbits(mask[words].view(np.uint8).reshape(-1, 4), axis=1, bitorder="little")
    if int(bits.sum()) > MAX_ALLOWED:
        return None
    at, bit = np.nonzero(bits)
    allowed = (32 * words[at] + bit).tolist()
    longest = max(allowed, key=lambda token_id: len(tokens[token_id]))
    text = tokens[longest]
    return longest if all(text.startswith(tokens[token_id]) for token_id in allowed) else None
