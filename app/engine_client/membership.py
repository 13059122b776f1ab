"""Membership: the engines elsewhere that there are, which come and go. Independent of requests and messages."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Mapping
from typing import Protocol

from app.engine_client.transport import TransportMaker

log = logging.getLogger("carousel.client")

LOOK_SECONDS = 5.0  # between two looks at the engines that there are, give or take a fifth
REPORT_SECONDS = 30.0  # between two log lines about the same problem


class EngineSource(Protocol):
    """Names of the engines elsewhere, and how to reach them."""

    @property
    def is_fixed(self) -> bool:
        """Return whether there are always the same engines."""

    async def engines(self) -> Mapping[str, TransportMaker]:
        """Return the current engines' makers of transports by name, such as engine 10.0.0.2:9400.

        Raises `OSError` if they are not known now.
        """

    def expect(self, fingerprint: str) -> None:
        """Let engines of other models refuse connections from now on; empty: any model is accepted."""

    def close(self) -> None:
        """End what finds the engines. It is not used afterwards."""


class MembershipOwner(Protocol):
    """Owner of the members, which are named by their engines."""

    @property
    def names(self) -> set[str]:
        """Return the names of all members."""

    async def add_member(self, name: str, make_engine: TransportMaker) -> None:
        """Add a member and start to connect to its engine."""

    def retire_member(self, name: str) -> bool:
        """Remove a member that has no engine any more. Returns whether it is removed."""

    @property
    def expected_fingerprint(self) -> str:
        """Return the fingerprint that further engines must have; empty: any."""


class Membership:
    """Adds members as engines appear, and removes those that have disappeared.

    An engine whose name has disappeared may still serve: a name service leaves out engines that are not ready, or end.
    Its member stays until its connection is lost.
    """

    def __init__(self, source: EngineSource, owner: MembershipOwner) -> None:
        self._source = source
        self._owner = owner
        self._reported, self._reported_at = "", 0.0

    async def follow(self) -> None:
        """Look at the engines that there are, from time to time, until the task is cancelled."""
        try:
            while True:
                await self.look()
                await asyncio.sleep(LOOK_SECONDS * random.uniform(0.8, 1.2))
        finally:
            self._source.close()

    async def look(self) -> None:
        """Add and remove members once. Without an answer the present members stay."""
        owner = self._owner
        self.expect()
        try:
            engines = await self._source.engines()
        except OSError as error:
            self._report(f"the engines are not known: {error}")
            return
        if not engines:
            self._report("there is no engine")
        for name in [name for name in engines if name not in owner.names]:  # in order, as they are numbered
            await owner.add_member(name, engines[name])
            if not self._source.is_fixed:
                log.info("%s is new", name)
        for name in owner.names - engines.keys():
            if owner.retire_member(name):
                log.info("%s is gone", name)

    def expect(self) -> None:
        """Let engines refuse connections if they have another model than those in use."""
        self._source.expect(self._owner.expected_fingerprint)

    def _report(self, problem: str) -> None:
        if problem != self._reported or time.monotonic() - self._reported_at >= REPORT_SECONDS:
            self._reported, self._reported_at = problem, time.monotonic()
            log.warning("waiting for engines: %s", problem)
