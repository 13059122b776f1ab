"""Entries of a quantization_config, each of which is read, known to be harmless, or refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.execution.models.errors import ModelConfigError

ALTERNATIVES = "choose the model as GGUF, AWQ or GPTQ, or the one that is not quantised"


class Fields:
    """Entries of one JSON object. key: its path in config.json, for errors."""

    def __init__(self, key: str, content: Any) -> None:
        if not isinstance(content, Mapping):
            raise ModelConfigError(key, content, "must be a JSON object")
        self.key = key
        self._content = content
        self._read: set[str] = set()

    def get(self, *names: str) -> Any:
        """Return the entry that is set of several names for the same one; None if none is."""
        self._read.update(names)
        found = {name: value for name in names if (value := self._content.get(name)) is not None}
        values = list(found.values())
        if any(value != values[0] for value in values):
            raise ModelConfigError(self.key, found, "has entries that contradict each other; keep one of them")
        return values[0] if values else None

    def choice(self, *names: str, allowed: tuple[Any, ...], default: Any = None) -> Any:
        """Return an entry that must be one of `allowed`. Texts are compared in lower case."""
        given = self.get(*names)
        value = default if given is None else given.lower() if isinstance(given, str) else given
        if not any(value == one and type(value) is type(one) for one in allowed):
            raise self.error(names[0], given, f"must be {_listed(allowed)}; {ALTERNATIVES}")
        return value

    def integer(self, *names: str, default: int | None = None) -> int:
        """Return an entry that must be a positive integer, or -1."""
        value = self.get(*names)
        value = default if value is None else value
        if not isinstance(value, int) or isinstance(value, bool) or not (value == -1 or 0 < value < 1 << 24):
            raise self.error(names[0], value, "must be a positive integer, or -1 for all inputs")
        return value

    def texts(self, *names: str) -> tuple[str, ...]:
        """Return a list of texts; an empty one if it is missing."""
        value = self.get(*names)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
            raise self.error(names[0], value, "must be a list of texts")
        return tuple(value)

    def object(self, name: str) -> Mapping[str, Any] | None:
        """Return an entry that must be a JSON object, if it is set."""
        value = self.get(name)
        if value is not None and not isinstance(value, Mapping):
            raise self.error(name, value, "must be a JSON object")
        return value

    def finish(self, harmless: frozenset[str]) -> None:
        """Raise ModelConfigError for an entry that was not read, is not `harmless`, and is set."""
        for name, value in self._content.items():
            if name not in self._read and name not in harmless and value not in (None, False, "", [], {}):
                reason = f"is not supported, and could change the computation; {ALTERNATIVES}"
                raise self.error(name, value, reason)

    def error(self, name: str, value: Any, reason: str) -> ModelConfigError:
        """Return the error for an entry."""
        return ModelConfigError(f"{self.key}.{name}", value, reason)


def _listed(allowed: tuple[Any, ...]) -> str:
    shown = [str(one).lower() if isinstance(one, bool) else str(one) for one in allowed]
    return shown[0] if len(shown) == 1 else f"one of {', '.join(shown)}"
