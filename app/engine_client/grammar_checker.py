"""GrammarChecker: compiles grammars of requests in a process of its own, before the engine receives them.

The process has limits of time and memory and is replaced when it exceeds one, so that no grammar can harm the engine.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from app.engine_client.checker_process import CheckerLost, CheckerProcess
from app.errors import ApiError
from engine.constraints.checks import Verdict
from engine.types import Vocabulary

log = logging.getLogger(__name__)

MAX_COMPILE_SECONDS = 5.0  # including the time in which other processes go first; processor time has a limit of its own
START_SECONDS = 30.0  # until the process has read the vocabulary
MAX_CACHED = 1024  # verdicts
MAX_WAIT_SECONDS = 5.0  # for other grammars
MAX_PENDING = 64  # grammars that wait or are compiled
MAX_PENDING_PER_TENANT = 16
MAX_ATTEMPTS = 2  # to check a grammar, if the process is killed meanwhile


@dataclass
class _Tenant:
    """Unfinished checks of one tenant, of which the one with the turn waits for those of other tenants only."""

    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    pending: int = 0


class GrammarChecker:
    """Checker of one model's grammars, which tenants use in rotation.

    The process is started by `start`, or for the first grammar, and replaced as soon as it has ended.
    """

    def __init__(self, vocabulary: Callable[[], Vocabulary]) -> None:
        """vocabulary: called once, in a thread."""
        self._make_vocabulary = vocabulary
        self._vocabulary: asyncio.Task[Vocabulary] | None = None
        self._encoded_vocabulary = b""
        self._process: CheckerProcess | None = None
        self._starting = asyncio.Lock()
        self._turn = asyncio.Lock()
        self._checks: OrderedDict[bytes, asyncio.Task[Verdict]] = OrderedDict()  # by digest
        self._start: asyncio.Task[None] | None = None  # of the first process, or of one that replaces another
        self._has_started = False
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
        if checking is None:
            turn = self._admit(tenant)
            checking = self._checks[digest] = asyncio.create_task(self._check(grammar, turn))
            checking.add_done_callback(lambda done: self._release(tenant, digest, done))
        self._checks.move_to_end(digest)
        while len(self._checks) > MAX_CACHED:
            self._checks.popitem(last=False)
        verdict = await asyncio.shield(checking)
        if verdict.error:
            raise ApiError(400, f"{param}: {verdict.error}", param=param, code=verdict.code)

    def start(self) -> None:
        """Begin to start the process, so that the first grammar does not wait for it."""
        if self._start is None or self._start.done():
            self._start = asyncio.create_task(self._try_to_start())

    @property
    def is_starting(self) -> bool:
        """Return whether the first process is starting."""
        return self._start is not None and not (self._has_started or self._start.done())

    async def started(self) -> None:
        """Wait until the first process has started, or has failed to."""
        if self._start is not None:
            await asyncio.wait((self._start,))

    async def close(self) -> None:
        """End the process, and one that is starting."""
        tasks = [task for task in (*self._checks.values(), self._start) if task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
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

    def _release(self, name: str, digest: bytes, check: asyncio.Task[Verdict]) -> None:
        is_final = not check.cancelled() and check.exception() is None and check.result().is_final
        if not is_final and self._checks.get(digest) is check:
            del self._checks[digest]
        tenant = self._tenants[name]
        tenant.pending -= 1
        if not tenant.pending:
            del self._tenants[name]

    async def _check(self, grammar: str, turn_of_tenant: asyncio.Lock) -> Verdict:
        """Return whether a grammar can be used. Raises `ApiError` if that is not known in time."""
        await self._ready()  # no check that waits is refused because of a start
        async with contextlib.AsyncExitStack() as turns:
            try:
                async with asyncio.timeout(MAX_WAIT_SECONDS):
                    await turns.enter_async_context(turn_of_tenant)
                    await turns.enter_async_context(self._turn)
            except TimeoutError:
                raise _overloaded("formats of earlier requests are still being compiled; retry in 1 s") from None
            for _ in range(MAX_ATTEMPTS):
                try:
                    return await self._ask(await self._ready(), grammar)
                except CheckerLost as lost:
                    log.warning("%s", lost)
            raise _overloaded("the process that compiles formats was killed; retry in 1 s")

    async def _ask(self, process: CheckerProcess, grammar: str) -> Verdict:
        """Return the verdict of a process, which is replaced if it ends. Raises `CheckerLost` and `ApiError`."""
        try:
            return await asyncio.wait_for(process.check(grammar), MAX_COMPILE_SECONDS)
        except TimeoutError:
            await process.kill()
            message = f"this server is too busy to compile the format within {MAX_COMPILE_SECONDS:g} s; retry in 1 s"
            raise _overloaded(message) from None
        except asyncio.CancelledError:
            await process.kill()
            raise
        finally:
            if not process.is_running:
                self.start()

    async def _try_to_start(self) -> None:
        """Start the process if there is none."""
        try:
            await self._ready()
        except ApiError as error:
            log.warning("%s", error)

    async def _ready(self) -> CheckerProcess:
        """Return the process, which is started if there is none. Raises `ApiError` if that fails or takes too long."""
        vocabulary = await self.vocabulary()
        async with self._starting:
            if self._process is None or not self._process.is_running:
                if not self._encoded_vocabulary:
                    self._encoded_vocabulary = await asyncio.to_thread(msgspec.msgpack.encode, vocabulary)
                start = CheckerProcess.start(self._encoded_vocabulary, is_urgent=not self._has_started)
                try:
                    self._process = await asyncio.wait_for(start, START_SECONDS)
                except TimeoutError:
                    message = f"the process that compiles formats did not start within {START_SECONDS:g} s"
                    raise _overloaded(message) from None
                except OSError as error:
                    raise _overloaded(f"the process that compiles formats cannot be started: {error}") from error
                self._has_started = True
            return self._process


def _overloaded(message: str) -> ApiError:
    return ApiError(503, message, code="overloaded", headers={"Retry-After": "1"})
