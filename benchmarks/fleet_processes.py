"""Two engines and a server that reaches them through links, which a benchmark can disturb."""

from __future__ import annotations

import asyncio
import contextlib
import re
import signal
import socket
import subprocess
import sys
import threading
from collections import deque
from contextlib import closing
from pathlib import Path

from benchmarks.serving import Serving

LOG_LINES = 200  # kept of each engine
CHUNK_BYTES = 1 << 16


def free_port() -> int:
    """Return a port that nothing uses now."""
    with closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


class EngineProcess:
    """`carousel engine` at one address, again and again."""

    def __init__(self, token: Path, *options: str, model: str = "demo") -> None:
        self.port = free_port()
        self.log: deque[str] = deque(maxlen=LOG_LINES)
        address = f"127.0.0.1:{self.port}"
        self._command = [sys.executable, "-m", "app", "engine", model, "--listen", address, "--token-file", str(token)]
        self._command += options

    def start(self) -> None:
        """Start a process, and wait until it is ready."""
        self.process = subprocess.Popen(self._command, stderr=subprocess.PIPE, text=True)
        ready = threading.Event()
        threading.Thread(target=self._copy_log, args=(self.process, ready), daemon=True).start()
        ready.wait()
        if self.process.poll() is not None:
            raise RuntimeError("\n".join(["The engine ended before it was ready:", *self.log]))

    def signal(self, number: int) -> None:
        """Send a signal."""
        self.process.send_signal(number)

    def stop(self) -> None:
        """Kill the process, also if it is stopped."""
        self.process.kill()
        self.process.wait()

    def _copy_log(self, process: subprocess.Popen[str], ready: threading.Event) -> None:
        assert process.stderr is not None
        with process.stderr as lines:
            for line in lines:
                self.log.append(line.rstrip())
                if re.match(r"Carousel engine is ready", line):
                    ready.set()
        ready.set()


class Link:
    """TCP proxy between the server and one engine, as the network between two machines. Runs on the event loop."""

    def __init__(self, port: int) -> None:
        """port: of the engine."""
        self.port = free_port()
        self._engine_port = port
        self.seconds = 0.0  # by which everything is delayed
        self._open = {"to engine": asyncio.Event(), "to server": asyncio.Event()}
        self.mend()

    async def start(self) -> None:
        """Accept connections."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)

    def stop(self) -> None:
        """Accept no further connections."""
        self._server.close()

    def cut(self, *directions: str) -> None:
        """Hold back what is sent "to engine" or "to server"; without either, both. No connection ends."""
        for direction in directions or self._open:
            self._open[direction].clear()

    def mend(self) -> None:
        """Pass everything on."""
        for event in self._open.values():
            event.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            engine_reader, engine_writer = await asyncio.open_connection("127.0.0.1", self._engine_port)
        except OSError:
            writer.close()
            return
        await asyncio.gather(
            self._copy("to engine", reader, engine_writer), self._copy("to server", engine_reader, writer)
        )

    async def _copy(self, direction: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(CHUNK_BYTES):
                if self.seconds:
                    await asyncio.sleep(self.seconds)
                await self._open[direction].wait()
                writer.write(data)
                await writer.drain()
        await self._open[direction].wait()
        writer.close()


class TwoEngines:
    """Server with two engines behind links. A context manager; links begin with `start_links` on the event loop."""

    def __init__(self, folder: Path, engine_options: tuple[str, ...], server_options: tuple[str, ...]) -> None:
        token = folder / "token"
        token.touch(0o600)
        token.write_text("a token of a benchmark's engines")
        self.engines = [EngineProcess(token, *engine_options) for _ in range(2)]
        self.links: list[Link] = []
        self._server_options = ("--token-file", str(token), *server_options)

    async def start(self) -> None:
        """Start all parts, and wait until both engines serve."""
        for engine in self.engines:
            await asyncio.to_thread(engine.start)
            self.links.append(Link(engine.port))
            await self.links[-1].start()
        addresses = ",".join(f"127.0.0.1:{link.port}" for link in self.links)
        self.server = Serving("--engines", addresses, "--served-model-name", "demo", *self._server_options)
        await asyncio.to_thread(self.server.__enter__)

    async def stop(self) -> None:
        """Stop all parts."""
        for link in self.links:
            link.mend()
        await asyncio.to_thread(self.server.__exit__, None, None, None)
        for link, engine in zip(self.links, self.engines, strict=True):
            link.stop()
            engine.signal(signal.SIGCONT)
            engine.stop()
