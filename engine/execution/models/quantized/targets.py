"""Names of modules as compressed-tensors describes them: exact names, regular expressions and class names."""

from __future__ import annotations

import re
from collections.abc import Iterable

from engine.execution.models.quantized.fields import Fields

REGEX = "re:"
# Bounds of the time that a pattern of a file takes: of patterns without repeated groups, the number of repetitions is
# the power of a name's length that the steps of matching are at most.
MAX_PATTERN_CHARACTERS = 500
MAX_REPETITIONS = 4
REPETITION = re.compile(r"(?<!\\)[*+]|(?<!\\)\{")
REPEATED_GROUP = re.compile(r"\)\s*[*+{]|\\[1-9]|\(\?P=")
EMBEDDINGS = ("embed_tokens",)


def check_patterns(fields: Fields, name: str, texts: Iterable[str]) -> None:
    """Raise ModelConfigError for a regular expression that is damaged, or could take long to match."""
    for text in texts:
        if not text.startswith(REGEX):
            continue
        pattern = text.removeprefix(REGEX)
        is_slow = REPEATED_GROUP.search(pattern) or len(REPETITION.findall(pattern)) > MAX_REPETITIONS
        if is_slow or len(pattern) > MAX_PATTERN_CHARACTERS:
            reason = (
                f"must be a regular expression of at most {MAX_PATTERN_CHARACTERS} characters and {MAX_REPETITIONS} "
                "repetitions, without repeated groups; list the names of modules instead"
            )
            raise fields.error(name, text, reason)
        try:
            re.compile(pattern)
        except re.error as error:
            raise fields.error(name, text, f"must be a regular expression after re: ({error})") from None


def rank(module: str, targets: Iterable[str]) -> int | None:
    """Return how closely targets match: 0 by name, 1 by a regular expression, 2 by class; None: not at all."""
    ranks = [found for target in targets if (found := _rank_of(module, target)) is not None]
    return min(ranks, default=None)


def _rank_of(module: str, target: str) -> int | None:
    if target == module:
        return 0
    if target.startswith(REGEX):
        return 1 if re.match(target.removeprefix(REGEX), module) else None
    class_name = "Embedding" if module.rpartition(".")[2] in EMBEDDINGS else "Linear"
    return 2 if target == class_name else None
