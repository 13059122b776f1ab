"""A process of `engine.constraints.checks`, from the side of the API."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys

import msgspec

from app.child_environment import module_environment
from engine.constraints.checks import LENGTH, MAX_CPU_SECONDS, Verdict, frame
from engine.host import lower_process_priority

CRASHES = {signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGFPE}


class CheckerLost(Exception):
    """The process ended without a verdict, and not because of the grammar, as far as its exit status tells."""


class CheckerProcess:
    """Process that compiles grammars, one at a time, with limits of memory and processor time."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None and process.stdout is not None
        self.process = process
        self._input, self._output = process.stdin, process.stdout

    @classmethod
    async def start(cls, vocabulary: bytes, *, is_urgent: bool) -> CheckerProcess:
        """Start a process, and wait until it has read an encoded `Vocabulary`. Raises `OSError`.

        is_urgent: whether it starts with the priority of this process. Afterwards steps of the engine go first.
        """
        creating = asyncio.create_task(_create())
        try:
            started = cls(await asyncio.shield(creating))
        except asyncio.CancelledError:  # a creation that is cancelled twice leaves its process and pipes
            await cls(await creating).kill()
            raise
        process = started.process
        if not is_urgent:
            lower_process_priority(process.pid)  # before its imports
        try:
            await started._ask(vocabulary)
        except BaseException as error:
            await started.kill()
            if isinstance(error, asyncio.IncompleteReadError | ConnectionError):
                raise OSError(f"the process that compiles grammars ended with status {process.returncode}") from error
            raise
        if is_urgent:
            lower_process_priority(process.pid)
        return started

    @property
    def is_running(self) -> bool:
        """Return whether it has not ended."""
        return self.process.returncode is None

    async def check(self, grammar: str) -> Verdict:
        """Return whether a grammar can be used. The process may have ended afterwards. Raises `CheckerLost`."""
        try:
            return await self._ask(grammar.encode())
        except (asyncio.IncompleteReadError, ConnectionError):
            status = await self.process.wait()
        if status == -signal.SIGPROF:
            message = f"it takes more than {MAX_CPU_SECONDS:g} s of processor time to compile; simplify it"
            return Verdict(message, is_final=False)
        if -status in CRASHES:
            return Verdict("it is too large or too deep to compile; simplify it")
        raise CheckerLost(f"the process that compiles formats ended with status {status}")

    async def kill(self) -> None:
        """End the process."""
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self._input.close()
        await self.process.wait()
        await self._output.read()  # to the end, at which the pipe is closed

    async def _ask(self, message: bytes) -> Verdict:
        self._input.write(frame(message))
        await self._input.drain()
        (length,) = LENGTH.unpack(await self._output.readexactly(LENGTH.size))
        return msgspec.msgpack.decode(await self._output.readexactly(length), type=Verdict)


async def _create() -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "engine.constraints.checks",
        str(os.getpid()),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env=module_environment(),
        start_new_session=True,  # Ctrl-C in the terminal is handled by this process
    )
