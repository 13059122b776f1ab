"""GrammarChecker: compiles grammars of requests in a process of its own, before the engine receives them.

The process has limits of time and memory and is replaced when it exceeds one, so that no grammar can harm the engine.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from app.engine_client.checker_process import CheckerProcess
from app.errors import ApiError
from engine.types import Vocabulary

MAX_COMPILE_SECONDS = 5.0  # including the time in which other processes go first; processor time has a limit of its own
START_SECONDS = 30.0  # until the process has read the vocabulary
MAX_CACHED = 1024  # verdicts
MAX_WAIT_SECONDS = 5.0  # for other grammars
MAX_PENDING = 64  # grammars that wait or are compiled
MAX_PENDING_PER_TENANT = 16


@dataclass
class _Tenant:
    """Unfinished checks of one tenant, of which the one with the turn waits for those of other tenants only."""

    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    pending: int = 0


class GrammarChecker:
    """Checker of one model's grammars, which tenants use in rotation. The process is started for the first grammar."""

    def __init__(self, vocabulary: Callable[[], Vocabulary]) -> None:
        """vocabulary: called once, in a thread."""
        self._make_vocabulary = vocabulary
        self._vocabulary: asyncio.Task[Vocabulary] | None = None
        self._encoded_vocabulary = b""
        self._process: CheckerProcess | None = None
        self._starting = asyncio.Lock()
        self._turn = asyncio.Lock()
        self._checks: OrderedDict[bytes, asyncio.Task[str]] = OrderedDict()  # by digest; the result is the error
        self._tenants: dict[str, _Tenant] = {}  # those with unfinished checks

    async def vocabulary(self) -> Vocabulary:
        """Return the model's tokens."""
        if self._vocabulary is None:
            self._vocabulary = asyncio.create_task(asyncio.to_thread(self._make_vocabulary))
        return await asyncio.shield(self._vocabulary)

    async def check(self, grammar: str, tenant: str, param: str) -> None:
        """Raise `ApiError` for a grammar that is wrong or too expensive (400), or cannot be checked now (429, 503).

        param: name of the parameter, for the error.
        """
        digest = hashlib.sha256(grammar.encode()).digest()
        checking = self._checks.get(digest)
        if checking is None or (checking.done() and (checking.cancelled() or checking.exception())):
            turn = self._admit(tenant)
            checking = self._checks[digest] = asyncio.create_task(self._check(grammar, turn))
            checking.add_done_callback(lambda done: self._release(tenant, done))
        self._checks.move_to_end(digest)
        while len(self._checks) > MAX_CACHED:
            self._checks.popitem(last=False)
        if error := await asyncio.shield(checking):
            raise ApiError(400, f"{param}: {error}", param=param, code="invalid_value")

    async def close(self) -> None:
        """End the process."""
        for task in self._checks.values():
            task.cancel()
        if self._process is not None:
            await self._process.kill()

    def _admit(self, name: str) -> asyncio.Lock:
        """Count a check of a tenant. Returns the lock for its turn; raises `ApiError` if too many are waiting."""
        tenant = self._tenants.get(name) or _Tenant()
        if tenant.pending >= MAX_PENDING_PER_TENANT:
            raise ApiError(
                429,
                f"{tenant.pending} new formats of this key are being compiled, and at most {MAX_PENDING_PER_TENANT} "
                "may wait; retry in 1 s",
                code="rate_limit_exceeded",
                headers={"Retry-After": "1"},
            )
        if sum(other.pending for other in self._tenants.values()) >= MAX_PENDING:
            raise _overloaded(f"{MAX_PENDING} formats of other requests are being compiled; retry in 1 s")
        self._tenants[name] = tenant
        tenant.pending += 1
        return tenant.turn

    def _release(self, name: str, check: asyncio.Task[str]) -> None:
        if not check.cancelled():
            check.exception()  # is then not reported as unread, if all clients have left
        tenant = self._tenants[name]
        tenant.pending -= 1
        if not tenant.pending:
            del self._tenants[name]

    async def _check(self, grammar: str, turn_of_tenant: asyncio.Lock) -> str:
        """Return why a grammar cannot be used; empty if it can. Raises `ApiError` if that is not known in time."""
        await self._ready()  # no check that waits is refused because of a start
        async with contextlib.AsyncExitStack() as turns:
            try:
                async with asyncio.timeout(MAX_WAIT_SECONDS):
                    await turns.enter_async_context(turn_of_tenant)
                    await turns.enter_async_context(self._turn)
            except TimeoutError:
                raise _overloaded("formats of earlier requests are still being compiled; retry in 1 s") from None
            process = await self._ready()
            try:
                return await asyncio.wait_for(process.check(grammar), MAX_COMPILE_SECONDS)
            except TimeoutError:
                await process.kill()
                message = f"the format was not compiled within {MAX_COMPILE_SECONDS:g} s; simplify it, or retry in 1 s"
                raise _overloaded(message) from None
            except asyncio.CancelledError:
                await process.kill()
                raise

    async def _ready(self) -> CheckerProcess:
        """Return the process, which is started if there is none. Raises `ApiError` if that takes too long."""
        vocabulary = await self.vocabulary()
        async with self._starting:
            if self._process is None or not self._process.is_running:
                if not self._encoded_vocabulary:
                    self._encoded_vocabulary = await asyncio.to_thread(msgspec.msgpack.encode, vocabulary)
                try:
                    self._process = await asyncio.wait_for(
                        CheckerProcess.start(self._encoded_vocabulary), START_SECONDS
                    )
                except TimeoutError:
                    message = f"the process that compiles formats did not start within {START_SECONDS:g} s"
                    raise _overloaded(message) from None
            return self._process


def _overloaded(message: str) -> ApiError:
    return ApiError(503, message, code="overloaded", headers={"Retry-After": "1"})
