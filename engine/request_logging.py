"""Log lines about one request.

They carry the ID that its client knows, so that a search for it finds the access line and the lines of both processes.
"""

from __future__ import annotations

import logging

from engine.types import Request


def log_request(
    log: logging.Logger, level: int, request: Request, message: str, *values: object, has_traceback: bool = False
) -> None:
    """Log a message about a request, formatted with `values`.

    The JSON form has the fields of the access line: `request_id`, and `stream` if that is a different ID.
    `has_traceback` adds the traceback of the exception that is being handled.
    """
    if not log.isEnabledFor(level):
        return
    fields = {"request_id": request.log_id}
    name = request.log_id
    if request.id != request.log_id:
        fields["stream"] = request.id
        name += f" (stream {request.id})"
    log.log(level, f"request %s: {message}", name, *values, exc_info=has_traceback, extra={"fields": fields})
