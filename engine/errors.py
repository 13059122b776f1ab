"""Deliberate errors of the engine, except for a closed channel (ipc.py).

EngineError
├── ConfigError             the engine cannot be built as configured
├── DiskError               the folder for pages on disk cannot be used
├── ModelError              a model directory is damaged or not supported (execution/models/errors.py)
├── ModelFileError          a model file is damaged, incomplete or not supported (model_files/errors.py)
├── RequestRefused          one request cannot be served; has the parameter's name and a machine-readable code
│   ├── ContextExceeded     prompt (+ max_tokens) is longer than the model's context
│   ├── CapacityExceeded    the request could never fit into the KV pool, even alone
│   ├── InvalidParameter    a value that the engine cannot honour
│   └── RequestInFlight     the same request is computed for another connection
└── IntegrityError          the engine's own state is inconsistent; always a bug, never the caller's fault
"""


class EngineError(Exception):
    """Base of all deliberate errors of the engine."""


class ConfigError(EngineError):
    """The engine cannot be built from this configuration; the message names the option and the numbers."""


class DiskError(EngineError):
    """Pages cannot be kept in a folder; the message names it."""


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


class RequestInFlight(RequestRefused):
    """A request with the same ID is computed for another connection."""

    code = "request_in_flight"


class IntegrityError(EngineError):
    """The engine's own state is inconsistent. The message has the numbers that disagree."""
