"""Errors as clients receive them: an exception with status, type, parameter and code, and the OpenAI body for it."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any


class ApiError(Exception):
    """Refusal with its HTTP status. Raised by handlers; the server turns it into a response."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code
        self.headers = headers or {}

    @property
    def body(self) -> dict[str, Any]:
        """Return `{"error": {...}}`, as OpenAI's clients read it."""
        return error_body(self.status, str(self), self.param, self.code)


class KeyRefused(ApiError):
    """A required key is missing or wrong."""

    def __init__(self, message: str, code: str, *, was_given: bool) -> None:
        super().__init__(401, message, code=code, headers={"WWW-Authenticate": "Bearer"})
        self.was_given = was_given


_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    410: "gone_error",
    413: "invalid_request_error",
    415: "invalid_request_error",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "deadline_error",
}


def error_body(status: int, message: str, param: str | None = None, code: str | None = None) -> dict[str, Any]:
    """Return the OpenAI error object for an HTTP status. An error without a code uses the status's name as its code."""
    code = code or HTTPStatus(status).phrase.lower().replace(" ", "_")
    kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


# errors for which a retry would give the same result
NON_RETRYABLE_CODES = frozenset({"deadline_exceeded", "engine_died", "not_a_number", "no_token_allowed"})


def failure_status(code: str) -> int:
    """Return the HTTP status of a request that failed while it ran: 503 if a retry may succeed, 504 for a missed
    deadline, 400 for parameters that contradict each other.
    """
    if code == "deadline_exceeded":
        return 504
    if code == "no_token_allowed":
        return 400
    return 503 if code in ("engine_unavailable", "server_shutdown", "abandoned") else 500
