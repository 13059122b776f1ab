"""A process of `engine.constraints.checks`, from the side of the API."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys

import msgspec

from app.child_environment import module_environment
from engine.constraints.checks import LENGTH, MAX_CPU_SECONDS, Verdict, frame
from engine.host import lower_process_priority


class CheckerProcess:
    """Process that compiles grammars, one at a time, with limits of memory and processor time."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None and process.stdout is not None
        self.process = process
        self._input, self._output = process.stdin, process.stdout

    @classmethod
    async def start(cls, vocabulary: bytes) -> CheckerProcess:
        """Start a process, and wait until it has read an encoded `Vocabulary`. Raises `OSError`."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "engine.constraints.checks",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=module_environment(),
            start_new_session=True,  # Ctrl-C in the terminal is handled by this process
        )
        lower_process_priority(process.pid)  # before its imports, and so that steps of the engine go first
        started = cls(process)
        try:
            await started._ask(vocabulary)
        except BaseException as error:
            await started.kill()
            if isinstance(error, asyncio.IncompleteReadError | ConnectionError):
                raise OSError(f"the process that compiles grammars ended with status {process.returncode}") from error
            raise
        return started

    @property
    def is_running(self) -> bool:
        """Return whether it has not ended."""
        return self.process.returncode is None

    async def check(self, grammar: str) -> str:
        """Return why a grammar cannot be used; empty if it can. The process may have ended afterwards."""
        try:
            return (await self._ask(grammar.encode())).error
        except (asyncio.IncompleteReadError, ConnectionError):
            if await self.process.wait() == -signal.SIGPROF:
                return f"it takes more than {MAX_CPU_SECONDS:g} s to compile; simplify it"
            return "it is too large or too deep to compile; simplify it"

    async def kill(self) -> None:
        """End the process."""
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        await self.process.wait()

    async def _ask(self, message: bytes) -> Verdict:
        self._input.write(frame(message))
        await self._input.drain()
        (length,) = LENGTH.unpack(await self._output.readexactly(LENGTH.size))
        return msgspec.msgpack.decode(await self._output.readexactly(length), type=Verdict)
