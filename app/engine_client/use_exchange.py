"""UseExchange: posts the use of limits in this process to engines that serve others too, and takes in theirs.

Posts are collected for `POST_SECONDS`, except for the first one after a while. An engine that makes no progress gets
none until it does, so that they do not pile up.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping

from app.admission.shared_uses import LOST_SECONDS, UNREPORTED_SECONDS, SharedUses
from app.engine_client.member import EngineMember
from app.engine_client.transport import Transport
from engine.ipc import PostUse, StepResult

POST_SECONDS = 0.02  # between two posts to an engine


class UseExchange:
    """Posts to the engines that have several connections. With one connection nothing is counted or sent."""

    def __init__(self, members: Mapping[int, EngineMember]) -> None:
        """members: the current ones, by number."""
        self._members = members
        self._channels: dict[int, Transport] = {}  # to the engines with several connections
        self._shared: SharedUses | None = None
        self._timer: asyncio.TimerHandle | None = None  # of the next post
        self._posted_at = -math.inf

    def attach(self, shared: SharedUses) -> None:
        """Exchange these uses from now on."""
        self._shared = shared
        shared.on_unsent = self._on_unsent

    @property
    def slots_taken(self) -> int:
        """Return the slots that requests of all processes had in the engines with several connections, as they last
        reported.
        """
        shared_members = (member for member in self._members.values() if member.connections > 1)
        return sum(sum(member.load.running) for member in shared_members if member.load is not None)

    def on_step(self, index: int, result: StepResult) -> None:
        """Handle the uses that an engine passes on, and the number of its connections."""
        if (shared := self._shared) is None:
            return
        if result.uses is not None:
            shared.receive(index, result.uses)
        if result.connections > 1:
            if index not in self._channels and (member := self._members.get(index)) is not None:
                self._channels[index] = member.engine
                shared.join(index)
        elif index in self._channels:
            self._leave(index)

    def on_change(self) -> None:
        """Leave the engines that are lost."""
        for index, channel in list(self._channels.items()):
            member = self._members.get(index)
            if member is None or member.engine is not channel or not (member.is_ready or member.is_draining):
                self._leave(index)

    def _leave(self, index: int) -> None:
        assert self._shared is not None
        del self._channels[index]
        self._shared.leave(index)
        for seconds in (UNREPORTED_SECONDS, LOST_SECONDS):
            asyncio.get_running_loop().call_later(seconds + POST_SECONDS, self._shared.forget_lost)  # not earlier

    def _on_unsent(self) -> None:
        if self._timer is None:
            loop = asyncio.get_running_loop()
            seconds = self._posted_at + POST_SECONDS - loop.time()
            if seconds <= 0.0:
                self._post()
            else:
                self._timer = loop.call_later(seconds, self._post)

    def _post(self) -> None:
        """Send each engine its next post."""
        assert self._shared is not None
        loop = asyncio.get_running_loop()
        self._timer, self._posted_at = None, loop.time()
        for index, channel in self._channels.items():
            if not self._members[index].is_stalled and (uses := self._shared.take(index)):
                channel.send(PostUse(uses))
        if self._shared.has_unsent:
            self._timer = loop.call_later(POST_SECONDS, self._post)
