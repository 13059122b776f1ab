"""Descriptions of the processes that a supervisor starts, which they read from standard input, and their reports."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Any, TypeVar

import msgspec

from engine.config import EngineConfig
from engine.types import ModelInfo


class EngineChild(msgspec.Struct, frozen=True, kw_only=True):
    """An engine process. listen, heartbeat, status: descriptors. Times are in seconds."""

    config: EngineConfig
    token: str
    orphan_grace: float
    drain_seconds: float
    log_level: str
    log_format: str
    listen: int
    heartbeat: int
    status: int
    parent: int


class ApiChild(msgspec.Struct, frozen=True, kw_only=True):
    """One of several API processes.

    flags: of the command line. index: its number; ports: of the loopback sockets of all of them, on which they forward
    requests to each other. engines: ports of engines on this machine; none if `--engines` names others. listen,
    internal, status: descriptors. is_port_chosen: see `Listener`. replaces: whether another process with this number
    has ended.
    """

    flags: dict[str, Any]
    index: int
    ports: tuple[int, ...]
    engines: tuple[int, ...]
    token: str
    listen: int
    internal: int
    status: int
    parent: int
    is_port_chosen: bool
    replaces: bool


class Loading(msgspec.Struct, frozen=True, tag="loading"):
    """Progress of an engine that is built."""

    stage: str
    done: int
    total: int


class EngineReady(msgspec.Struct, frozen=True, tag="engine"):
    """An engine accepts connections."""

    info: ModelInfo


class ApiReady(msgspec.Struct, frozen=True, tag="api"):
    """An API process serves requests."""


Report = Loading | EngineReady | ApiReady
_DECODER: msgspec.json.Decoder[Report] = msgspec.json.Decoder(Report)
Child = TypeVar("Child", EngineChild, ApiChild)


def read_child(kind: type[Child]) -> Child:
    """Return the description of this process. Ends it if the supervisor has died before it had written all of it."""
    try:
        return msgspec.msgpack.decode(sys.stdin.buffer.read(), type=kind)
    except msgspec.ValidationError:  # not of what is missing
        raise
    except msgspec.DecodeError:
        sys.exit("carousel: the supervisor of this process has ended")


def report(descriptor: int, message: Report) -> None:
    """Send a report to the supervisor, unless it has gone."""
    with contextlib.suppress(OSError):
        os.write(descriptor, msgspec.json.encode(message) + b"\n")


def read_report(line: bytes) -> Report:
    """Return the report in a line."""
    return _DECODER.decode(line)
