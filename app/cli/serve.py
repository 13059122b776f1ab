"""Server start: bind the socket, print the address, show the progress of loading, and serve."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import socket
import sys
from collections.abc import Callable
from functools import partial
from typing import cast

import uvicorn
from starlette.applications import Starlette

from app.admission.addresses import AddressList
from app.admission.connection_limits import RESERVED_FILES, ConnectionLimits
from app.admission.tenants import Tenant
from app.admission.thread_queue import limit_malloc_cache
from app.cli.announcements import ready_line, starting_line, url_of, warn
from app.cli.graceful import GracefulServer
from app.cli.key_reload import KeyReload
from app.cli.listener import BACKLOG, Listener
from app.cli.loading import LoadingBar, describe
from app.cli.open_store import open_store
from app.cli.service_manager import ServiceManager
from app.cli.supervised import ApiChild, ApiReady, report
from app.cli.thread_limits import start_tokenizer_threads
from app.engine_client.client import EngineClient, EngineUnavailable
from app.engine_client.engine_sources import engine_source, local_engines
from app.engine_client.machine import machine_shares
from app.http.connection import Connection
from app.http.siblings import Siblings
from app.http.websocket import WebSocketProtocol
from app.server import create_app, load_text
from app.settings import Settings, SettingsError
from app.text.chat_template import InvalidTemplate
from app.text.errors import TokenizerError
from engine.log_queue import LogHandler
from engine.placement import WHOLE_MACHINE
from engine.worker import Builder

log = logging.getLogger("carousel")

MAX_FRAME_BYTES = 1 << 20  # of one WebSocket frame from a client
GRACEFUL_SECONDS = 10  # after the drain
MIN_OPEN_FILES = 2 * RESERVED_FILES  # half of these are for connections
# Net allocations before the collector scans the youngest generation. With Python's default of 700, every third request
# starts a scan, most of which finds objects of requests that are still being answered.
ALLOCATIONS_BETWEEN_COLLECTIONS = 10_000
# Time that a thread which decodes a large body keeps the interpreter lock when the event loop needs it. Python's
# default of 5 ms would be added to every turn of the loop meanwhile.
SWITCH_SECONDS = 0.001


def run(
    settings: Settings,
    logs: LogHandler,
    read_configured: Callable[[], tuple[Tenant, ...]],
    build: Builder | None = None,
    child: ApiChild | None = None,
) -> int:
    """Serve until a signal ends the server. Returns the exit status, negative for a signal to end the process with.

    read_configured: returns the current tenants of the options and the config file; see `KeyReload`. build: see
    `EngineClient`. Raises `SettingsError` for a limit of the system that leaves too little, and `ConfigError` for more
    engines than the machine has cores or GPUs.
    """
    if (files := _allow_files()) < MIN_OPEN_FILES:
        logs.write_plain(f"carousel: `ulimit -n` allows {files} open files; at least {MIN_OPEN_FILES} are needed")
        return 1
    connections = _connection_limits(settings, files)
    try:
        text = load_text(settings)
        listener = _listener(settings, child)
    except (TokenizerError, InvalidTemplate, OSError) as error:
        logs.write_plain(f"carousel: {error}")
        return 1
    state_file = open_store(settings, listener, child.index if child is not None else 0)
    start_tokenizer_threads(text)
    sys.setswitchinterval(SWITCH_SECONDS)
    limit_malloc_cache()
    client = EngineClient(
        settings.engine,
        build,
        watchdog=settings.watchdog_timeout,
        logs=(settings.log_level, settings.log_format),
        restart_interval=settings.restart_interval,
        shares=machine_shares(settings.engine, settings.replicas) if child is None else (WHOLE_MACHINE,),
        remote=engine_source(settings) or (local_engines(child.engines, child.token) if child is not None else None),
    )
    siblings = Siblings(child.index, child.ports) if child is not None else None
    app = create_app(settings, client, text, logs.writer, connections, state_file, siblings)
    config = _config(settings, app, connections)
    keys = KeyReload(app.state.service, read_configured)
    manager = ServiceManager(os.environ)
    internal = socket.socket(fileno=child.internal) if child is not None else None
    server = GracefulServer(config, app.state.service, keys, listener, manager, internal)
    with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:  # uvloop's loop, if installed
        return runner.run(_run(server, manager, settings, logs, child))


def _config(settings: Settings, app: Starlette, connections: ConnectionLimits) -> uvicorn.Config:
    """Return the configuration of uvicorn."""
    return uvicorn.Config(
        app,
        # Never debug, at which the WebSocket library logs the text of every frame.
        log_level={"debug": "info", "info": "warning"}.get(settings.log_level, settings.log_level),
        log_config=None,
        access_log=False,
        root_path=settings.root_path,
        forwarded_allow_ips=_proxies(),
        # uvicorn calls it to create protocols
        http=cast(type[asyncio.Protocol], partial(Connection, limits=connections)),
        ws=WebSocketProtocol,
        ws_max_size=MAX_FRAME_BYTES,
        ws_per_message_deflate=False,  # 64 KiB per connection instead of 14 KiB, for frames of a few dozen bytes
        timeout_keep_alive=settings.keep_alive,
        timeout_graceful_shutdown=GRACEFUL_SECONDS,
        server_header=False,
        backlog=BACKLOG,
    )


def spare_loaded_objects() -> None:
    """Let the garbage collector skip the objects that exist now, and run rarely, so that it does not delay tokens."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(ALLOCATIONS_BETWEEN_COLLECTIONS, *gc.get_threshold()[1:])


def _listener(settings: Settings, child: ApiChild | None) -> Listener:
    """Return the listening socket, or the one of all API processes. Raises `OSError`."""
    if child is not None:
        sock = socket.socket(fileno=child.listen)
        return Listener.of_several(sock, replaces=child.replaces, is_port_chosen=child.is_port_chosen)
    return Listener.create(settings.host, settings.port, reuse_port=settings.reuse_port, environment=os.environ)


async def _run(
    server: GracefulServer, manager: ServiceManager, settings: Settings, logs: LogHandler, child: ApiChild | None
) -> int:
    client = server.service.client
    url = url_of(server.listener.sock, settings)
    if child is None:
        logs.write_plain(starting_line(url, settings))
        warn(settings, server.listener.known_port)
    serving = asyncio.create_task(server.serve(sockets=[server.listener.sock]))
    server.service.grammars.start()
    loading = asyncio.create_task(_show_loading(server, manager, url, logs, child))
    await asyncio.wait((serving, loading), return_when=asyncio.FIRST_COMPLETED)
    failure = "" if serving.done() else loading.result()
    if failure and not server.should_exit:  # not if the server was stopped before it was ready
        logs.write_plain(f"carousel: {failure}")
        server.should_exit = True
        await serving
        return 1
    spare_loaded_objects()
    loading.cancel()
    failed = asyncio.create_task(client.failed())
    await asyncio.wait((serving, failed), return_when=asyncio.FIRST_COMPLETED)
    has_failed = failed.done() and not server.should_exit
    if has_failed:
        logs.write_plain("carousel: stopping with status 1, because no engine can be started")
        server.should_exit = True
    failed.cancel()
    await serving
    return 1 if has_failed else server.exit_status


async def _show_loading(
    server: GracefulServer, manager: ServiceManager, url: str, logs: LogHandler, child: ApiChild | None
) -> str:
    """Show a progress bar on a terminal while the engine loads, then a line. Returns the reason if loading failed. One
    of several processes reports it to its supervisor instead.
    """
    client = server.service.client
    ready = asyncio.create_task(server.service.loaded())
    with LoadingBar(logs) as bar:
        while not ready.done():
            loading = client.loading
            bar.show(loading.stage, loading.done, loading.total)
            manager.starting(f"Loading: {loading.stage} {loading.done} of {loading.total}")
            await asyncio.wait((ready,), timeout=0.1)
    try:
        info = ready.result()
    except EngineUnavailable as error:
        return str(error)
    await server.accepts()
    if child is not None:
        report(child.status, ApiReady())
        return ""
    engines = len(client.members)
    description = describe(info) + (f"; the first of {engines} engines" if engines > 1 else "")
    logs.write_plain(ready_line(url, description))
    manager.ready(f"Serving at {url}: {description}")
    return ""


def _allow_files() -> int:
    """Raise the soft limit of open files, 1024 by default, as each connection needs one. Returns the new limit."""
    try:
        import resource
    except ImportError:  # not available on Windows
        return MIN_OPEN_FILES
    hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with contextlib.suppress(ValueError, OSError):  # macOS reports a larger limit than it allows
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard_limit, hard_limit))
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return soft if soft != resource.RLIM_INFINITY else sys.maxsize


def _connection_limits(settings: Settings, files: int) -> ConnectionLimits:
    """Return the connection limits for `files` open files. Raises `SettingsError`."""
    hard_limit = files - RESERVED_FILES
    total = settings.max_connections or hard_limit
    if total > hard_limit:
        reason = f"`ulimit -n` allows {files:,} open files, of which {RESERVED_FILES} are reserved"
        raise SettingsError(f"max_connections must be at most {hard_limit:,}, not {total:,}: {reason}")
    return ConnectionLimits(total, settings.max_connections_per_address, AddressList(_proxies()))


def _proxies() -> str:
    """Return the addresses and networks of trusted proxies, from uvicorn's variable and default."""
    return os.environ.get("FORWARDED_ALLOW_IPS", "127.0.0.1,::1")
