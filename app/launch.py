"""Run the server in this process: bind first, say where it is, show how far the model has come, serve."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import shutil
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import TextIO, cast

import uvicorn
from tqdm import tqdm

from app.chat_template import TemplateBroken
from app.client import EngineClient, EngineUnavailable
from app.connection import Connection
from app.patience import UNREAD_SECONDS, keep_unread
from app.security import is_loopback
from app.server import create_app
from app.service import Service
from app.settings import Settings
from app.text import TextModel, TokenizerMissing
from app.websocket import WebSocketProtocol
from engine.log_queue import LogHandler, LogWriter

log = logging.getLogger("carousel")

MAX_FRAME = 1 << 20  # bytes of one WebSocket frame from a client
GRACEFUL_SECONDS = 10
BACKLOG = 2048  # connections that may wait to be accepted
# Objects that have come and not gone before the collector walks through the young ones. At Python's 700 every third
# request starts a walk, most of which finds those of requests that are still being answered.
MADE_BETWEEN_WALKS = 10_000
LONG_PHASES = ("weights", "graphs")  # of a start, worth a progress bar
DRAIN_SECONDS = 7.0  # what runs may finish in; the rest of the time is for saying goodbye
GOODBYE_SECONDS = 1.0  # that tasks without clients may take to end
HANG_UP_SECONDS = 9.0  # after which nobody is waited for who has not read his goodbye; below uvicorn's own limit


def run(settings: Settings, logs: LogHandler) -> int:
    """Serve until a signal ends the server. Returns the exit status, negative for a signal to end the process with."""
    try:
        text = TextModel.load(Path(settings.engine.model), settings.chat_template)
        bound = _bind(settings.host, settings.port)
    except (TokenizerMissing, TemplateBroken, OSError) as error:
        logs.announce(f"carousel: {error}")
        return 1
    _allow_files()
    client = EngineClient(settings.engine, watchdog=settings.watchdog_timeout, log_format=settings.log_format)
    app = create_app(settings, client, text, logs.writer)
    config = uvicorn.Config(
        app,
        # Never debug: the WebSocket library then logs the text of every frame.
        log_level={"debug": "info", "info": "warning"}.get(settings.log_level, settings.log_level),
        log_config=None,
        access_log=False,
        root_path=settings.root_path,
        http=Connection,
        ws=WebSocketProtocol,
        ws_max_size=MAX_FRAME,
        ws_per_message_deflate=False,  # 64 KiB against 14 KiB a connection, for frames of a few dozen bytes
        timeout_graceful_shutdown=GRACEFUL_SECONDS,
        server_header=False,
        backlog=BACKLOG,
    )
    with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:  # uvloop's, where there is one
        return runner.run(_run(_Server(config, app.state.service), client, bound, settings, logs))


class _Server(uvicorn.Server):
    """Drains before it stops: a stream that merely ends would pass for a complete answer."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self._service = service

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle signals on the event loop. uvicorn's own version raises them again when the server has stopped, which
        ends the process before its last log lines are written."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self.handle_exit, number, None)
        try:
            yield
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)

    @property
    def exit_status(self) -> int:
        """0, or minus the number of the first signal that stopped the server, which the process is to end with."""
        return -self._captured_signals[0] if self._captured_signals else 0

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal lets answers finish, a second one of either kind does not wait for them."""
        self.force_exit = self.force_exit or self.should_exit
        super().handle_exit(sig, frame)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        hanging_up = asyncio.get_running_loop().call_later(HANG_UP_SECONDS, self._hang_up)
        # The doors stay open meanwhile, so that whoever asks is told, and WebSockets hear the end of their answers.
        await self._service.drain(DRAIN_SECONDS, lambda: self.force_exit)
        await super().shutdown(sockets)
        hanging_up.cancel()
        if self.force_exit:  # uvicorn leaves all of this in the middle, and the signal ends the process next
            self._hang_up()
            if self.server_state.tasks:
                await asyncio.wait(self.server_state.tasks, timeout=GOODBYE_SECONDS)
            await self.lifespan.shutdown()

    def _hang_up(self) -> None:
        for connection in list(self.server_state.connections):
            connection.transport.abort()


async def _run(
    server: _Server, client: EngineClient, bound: socket.socket, settings: Settings, logs: LogHandler
) -> int:
    host, port = bound.getsockname()[:2]
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}{settings.root_path}"
    logs.announce(f"Carousel is starting on {url} with {settings.model_name}")
    _heed_hang_up(server)
    if not (settings.tenants or is_loopback(settings.host)):
        log.warning("anybody who reaches %s may use it; --api-key lets in those who have a key", settings.host)
    if "*" in settings.allowed_origins and not settings.tenants:
        log.warning("any page in a browser that reaches it may use it; --allowed-origins names those that may")
    serving = asyncio.create_task(server.serve(sockets=[bound]))
    loading = asyncio.create_task(_show_loading(client, url, logs))
    await asyncio.wait((serving, loading), return_when=asyncio.FIRST_COMPLETED)
    failure = "" if serving.done() else loading.result()
    if failure and not server.should_exit:  # and not because it was told to stop before it was ready
        logs.announce(f"carousel: {failure}")
        server.should_exit = True
        await serving
        return 1
    gc.collect()
    gc.freeze()  # what is loaded stays: the collector need not walk through it between two tokens
    gc.set_threshold(MADE_BETWEEN_WALKS, *gc.get_threshold()[1:])
    await serving
    loading.cancel()
    return server.exit_status


async def _show_loading(client: EngineClient, url: str, logs: LogHandler) -> str:
    """A progress bar on a terminal while the engine gets ready; one line when it is. Returns why it is not, if so."""
    ready = asyncio.create_task(client.ready())
    columns = shutil.get_terminal_size().columns
    disable = logs.is_json or not sys.stderr.isatty()
    screen = cast(TextIO, _Screen(logs.writer))
    with tqdm(
        desc="weights", unit_scale=True, leave=False, delay=0.5, disable=disable, file=screen, ncols=columns
    ) as bar:
        shown = "weights"
        while not ready.done():
            loading = client.loading
            if loading.what in LONG_PHASES:
                if loading.what != shown:
                    shown = loading.what
                    bar.set_description(shown)
                    bar.reset()
                bar.total = loading.total
                bar.update(loading.done - bar.n)
            await asyncio.wait((ready,), timeout=0.1)
    try:
        info = ready.result()
    except EngineUnavailable as error:
        return str(error)
    tokens = info.num_pages * info.page_size
    logs.announce(
        f"Ready: {url}  ({info.parameters / 1e6:.1f}M parameters in {info.dtype} on {info.device}, "
        f"{info.max_num_seqs} slots, KV for {tokens:,} tokens, context {info.max_model_len:,})"
    )
    return ""


class _Screen:
    """The terminal as a file for a progress bar. A write never blocks the event loop."""

    def __init__(self, writer: LogWriter) -> None:
        self.write = writer.write_text

    def flush(self) -> None:
        """Do nothing: a thread writes the queued text."""


def _heed_hang_up(server: uvicorn.Server) -> None:
    """A terminal that is closed is a signal to stop like the others, unless `nohup` said to ignore it."""
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, server.handle_exit)


def _allow_files() -> None:
    """As many open files as may be, instead of the 1024 that shells begin with: each connection is one."""
    try:
        import resource
    except ImportError:  # there is none on Windows
        return
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with contextlib.suppress(ValueError, OSError):  # macOS names more than it gives
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _bind(host: str, port: int) -> socket.socket:
    """The listening socket, before anything expensive. Raises `OSError` that names the address."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    keep_unread(sock, UNREAD_SECONDS)  # inherited by every connection
    try:
        sock.bind((host, port))
        sock.listen(BACKLOG)  # only here it is known that nobody else does: two may bind at the same moment
    except OSError as error:
        sock.close()
        raise OSError(f"cannot listen on {host}:{port}: {error.strerror}") from error
    return sock
