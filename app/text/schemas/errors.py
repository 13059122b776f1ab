"""Errors of formats."""

from __future__ import annotations


class InvalidFormat(Exception):
    """A format cannot be enforced; the message gives the reason.

    param: the protocol's name of the parameter with the format, if it is known.
    """

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param
