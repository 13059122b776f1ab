"""GrammarChecker: compiles grammars of requests in a process of its own, before the engine receives them.

The process has limits of time and memory and is replaced when it exceeds one, so that no grammar can harm the engine.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import sys
from collections import OrderedDict
from collections.abc import Callable

import msgspec

from app.child_environment import module_environment
from app.errors import ApiError
from engine.constraints.checks import LENGTH, Verdict, frame
from engine.types import Vocabulary

MAX_COMPILE_SECONDS = 1.0
START_SECONDS = 30.0  # until the process has read the vocabulary
MAX_CACHED = 1024  # verdicts
MAX_PENDING = 64  # grammars that wait or are compiled
MAX_PENDING_PER_TENANT = 4


class GrammarChecker:
    """Checker of one model's grammars. The process is started for the first grammar."""

    def __init__(self, vocabulary: Callable[[], Vocabulary]) -> None:
        """vocabulary: called once, in a thread."""
        self._make_vocabulary = vocabulary
        self._vocabulary: asyncio.Task[Vocabulary] | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._turn = asyncio.Lock()
        self._checks: OrderedDict[bytes, asyncio.Task[str]] = OrderedDict()  # by digest; the result is the error
        self._pending: dict[str, int] = {}  # unfinished checks by tenant

    async def vocabulary(self) -> Vocabulary:
        """Return the model's tokens."""
        if self._vocabulary is None:
            self._vocabulary = asyncio.create_task(asyncio.to_thread(self._make_vocabulary))
        return await asyncio.shield(self._vocabulary)

    async def check(self, grammar: str, tenant: str, param: str) -> None:
        """Raise `ApiError` for a grammar that is wrong or too expensive (400), or if too many are waiting (429, 503).

        param: name of the parameter, for the error.
        """
        digest = hashlib.sha256(grammar.encode()).digest()
        checking = self._checks.get(digest)
        if checking is None or checking.cancelled():
            self._admit(tenant)
            checking = self._checks[digest] = asyncio.create_task(self._check(grammar))
            checking.add_done_callback(lambda _: self._release(tenant))
        self._checks.move_to_end(digest)
        while len(self._checks) > MAX_CACHED:
            self._checks.popitem(last=False)
        if error := await asyncio.shield(checking):
            raise ApiError(400, f"{param}: {error}", param=param, code="invalid_value")

    async def close(self) -> None:
        """End the process."""
        for task in self._checks.values():
            task.cancel()
        await self._kill()

    def _admit(self, tenant: str) -> None:
        pending = self._pending.get(tenant, 0)
        if pending >= MAX_PENDING_PER_TENANT:
            raise ApiError(
                429,
                f"{pending} new formats of this key are being compiled, and at most {MAX_PENDING_PER_TENANT} may wait; "
                "retry in 1 s",
                code="rate_limit_exceeded",
                headers={"Retry-After": "1"},
            )
        if sum(self._pending.values()) >= MAX_PENDING:
            message = f"{MAX_PENDING} formats of other requests are being compiled; retry in 1 s"
            raise ApiError(503, message, code="overloaded", headers={"Retry-After": "1"})
        self._pending[tenant] = pending + 1

    def _release(self, tenant: str) -> None:
        self._pending[tenant] -= 1
        if not self._pending[tenant]:
            del self._pending[tenant]

    async def _check(self, grammar: str) -> str:
        """Return why a grammar cannot be used; empty if it can."""
        vocabulary = await self.vocabulary()
        async with self._turn:
            try:
                if self._process is not None and self._process.returncode is not None:
                    await self._kill()  # it ended while it was idle
                if self._process is None:
                    await asyncio.wait_for(self._start(vocabulary), START_SECONDS)
                return await asyncio.wait_for(self._ask(grammar), MAX_COMPILE_SECONDS)
            except (TimeoutError, asyncio.IncompleteReadError, OSError) as error:
                await self._kill()
                if isinstance(error, TimeoutError):
                    return f"it takes more than {MAX_COMPILE_SECONDS:g} s to compile; simplify it"
                return "it is too large or too deep to compile; simplify it"
            except asyncio.CancelledError:
                await self._kill()
                raise

    async def _start(self, vocabulary: Vocabulary) -> None:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "engine.constraints.checks",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=module_environment(),
            start_new_session=True,  # Ctrl-C in the terminal is handled by this process
        )
        await self._send(msgspec.msgpack.encode(vocabulary))
        await self._receive()

    async def _ask(self, grammar: str) -> str:
        await self._send(grammar.encode())
        return (await self._receive()).error

    async def _send(self, message: bytes) -> None:
        assert self._process is not None and self._process.stdin is not None
        self._process.stdin.write(frame(message))
        await self._process.stdin.drain()

    async def _receive(self) -> Verdict:
        assert self._process is not None and self._process.stdout is not None
        (length,) = LENGTH.unpack(await self._process.stdout.readexactly(LENGTH.size))
        return msgspec.msgpack.decode(await self._process.stdout.readexactly(length), type=Verdict)

    async def _kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
