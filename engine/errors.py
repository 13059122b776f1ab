"""Everything the engine raises on purpose, but for a closed channel (frames.py).

EngineError
├── ConfigError             the engine cannot be built as asked
├── ModelError              a model directory is damaged or not computed here (execution/models/errors.py)
├── RequestRefused          one request cannot be served; carries the parameter's name and a machine-readable code
│   ├── ContextExceeded     prompt (+ max_tokens) is longer than the model's context
│   ├── CapacityExceeded    it could never fit into the KV pool, even alone
│   └── InvalidParameter    a value the engine cannot honour
└── IntegrityError          our own books do not balance; always a bug, never the caller's fault
"""


class EngineError(Exception):
    """Base of all deliberate errors of the engine."""


class ConfigError(EngineError):
    """The engine cannot be built from this configuration; the message names the option and the numbers."""


class RequestRefused(EngineError):
    """One request cannot be served. `param` names the request field, `code` is stable and machine-readable."""

    code = "invalid_request"

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class ContextExceeded(RequestRefused):
    """The sequence would be longer than the model's context."""

    code = "context_length_exceeded"


class CapacityExceeded(RequestRefused):
    """The sequence would need more KV pages than the whole pool has."""

    code = "kv_capacity_exceeded"


class InvalidParameter(RequestRefused):
    """A parameter has a value that cannot be honoured."""

    code = "invalid_value"


class IntegrityError(EngineError):
    """The books do not balance. The message carries the numbers that disagree."""
