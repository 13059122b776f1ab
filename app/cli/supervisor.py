"""Supervisor: several API processes and the engines that they share, on one machine (`serve --api-processes N`).

Imports neither the server nor torch, and reads no request. It has the listening socket and those of the engines, so
that a process that dies loses no connection that waits to be accepted, and its successor is found at the same place.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import secrets
import signal
import socket
import sys
import time
from asyncio.subprocess import Process
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from app.child_environment import module_environment
from app.cli.announcements import ready_line, starting_line, url_of, warn
from app.cli.listener import Listener
from app.cli.loading import LoadingBar, describe
from app.cli.service_manager import ServiceManager
from app.cli.supervised import ApiChild, ApiReady, EngineChild, EngineReady, Loading, Report, read_report
from app.engine_client.engine_process import bound_to
from app.engine_client.machine import machine_shares
from app.engine_client.member import MIN_LOADING_SECONDS
from app.engine_client.restart_policy import MAX_FAILED_STARTS, MIN_HEALTHY_SECONDS, RestartPolicy
from app.settings import Settings
from engine.heartbeat import Heartbeat
from engine.log_queue import LogHandler
from engine.types import ModelInfo

log = logging.getLogger("carousel.supervisor")

ORPHAN_GRACE_SECONDS = 30.0  # for which requests of an API process that died go on, until clients ask another one
EXIT_SECONDS = 5.0  # in which an engine without API processes ends
HEARTBEAT_POLL_SECONDS = 0.25
LOOPBACK = "127.0.0.1"

# How a process ended: its exit status, negative for a signal, or why it could not be started.
End = int | OSError | RuntimeError


class Supervisor:
    """Processes of one service. Made before the event loop runs."""

    def __init__(self, settings: Settings, flags: Mapping[str, Any], logs: LogHandler) -> None:
        """flags: of the command line. Raises `OSError` for an address that cannot be used, and `ConfigError`."""
        self._settings = settings
        self._flags = {name: str(value) if isinstance(value, Path) else value for name, value in flags.items()}
        self._logs = logs
        self._listener = Listener.create(settings.host, settings.port, reuse_port=False, environment=os.environ)
        self._manager = ServiceManager(os.environ)
        self._shares = () if settings.engines is not None else machine_shares(settings.engine, settings.replicas)
        self._engine_sockets = [_loopback_socket() for _ in self._shares]
        self._api_sockets = [_loopback_socket() for _ in range(settings.api_processes)]
        self._token = secrets.token_urlsafe(32)
        self._processes: dict[str, Process] = {}  # by name
        # Of reports: the loop alone would not keep these tasks, and a collection of garbage would end them.
        self._following: set[asyncio.Task[None]] = set()
        self._apis_ready: set[int] = set()
        self._info: ModelInfo | None = None  # of the first engine
        self._signal = 0  # the first that has stopped the service
        self._status: int | None = None  # exit status, once the service stops
        self._changed = asyncio.Event()
        self._bar = LoadingBar(logs)

    async def run(self) -> int:
        """Serve until a signal, or until no process can be started. Returns the exit status, negative for a signal."""
        url = url_of(self._listener.sock, self._settings)
        self._logs.write_plain(starting_line(url, self._settings))
        warn(self._settings, self._listener.known_port)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)
        for number in (signal.SIGHUP, signal.SIGUSR1):
            loop.add_signal_handler(number, self._forward, number)
        self._bar.__enter__()
        engines = [asyncio.create_task(self._keep_engine(index)) for index in range(len(self._shares))]
        apis = [asyncio.create_task(self._keep_api(index)) for index in range(self._settings.api_processes)]
        await self._until(lambda: len(self._apis_ready) == len(apis))
        self._bar.__exit__(None, None, None)
        if self._status is None:
            described = f"{describe(self._info)}; " if self._info is not None else ""
            description = f"{described}{len(apis)} API processes"
            self._logs.write_plain(ready_line(url, description))
            self._manager.ready(f"Serving at {url}: {description}")
        await self._until(lambda: False)
        self._manager.stopping(self._settings.drain_timeout)
        self._forward(signal.SIGTERM)
        await asyncio.gather(*apis)
        await self._end_engines(engines)
        return -self._signal if self._signal else self._status or 0

    # Signals and ends -----------------------------------------------------------------------------------------------

    def _on_signal(self, number: int) -> None:
        """Begin to stop; a second signal stops API processes without a drain."""
        if self._status is not None:
            self._forward(signal.SIGTERM)
        self._signal = self._signal or number
        self._stop(0)

    def _stop(self, status: int) -> None:
        if self._status is None:
            self._status = status
        self._change()

    def _change(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _until(self, condition: Any) -> None:
        """Wait for a condition, or until the service stops."""
        while self._status is None and not condition():
            await self._changed.wait()

    def _is_stopping(self) -> bool:
        return self._status is not None

    def _forward(self, number: int) -> None:
        """Send a signal to the API processes."""
        for name, process in self._processes.items():
            if name.startswith("API") and process.returncode is None:
                process.send_signal(number)

    async def _end_engines(self, keepers: Collection[asyncio.Task[None]]) -> None:
        for name, process in self._processes.items():
            if not name.startswith("API") and process.returncode is None:
                process.terminate()
        if keepers:
            await asyncio.wait(keepers, timeout=EXIT_SECONDS)
        for process in self._processes.values():
            if process.returncode is None:
                process.kill()
        await asyncio.gather(*keepers)

    # Processes ------------------------------------------------------------------------------------------------------

    async def _keep_engine(self, index: int) -> None:
        """Start an engine, and another one whenever it ends. The first engine starts alone, and the others with its
        number of pages, so that they accept the same requests.
        """
        if index:
            await self._until(lambda: self._info is not None)
        policy, name = RestartPolicy(), f"engine {index}"
        while not self._is_stopping():
            began = time.monotonic()
            end = await self._run_engine(index, name)
            if self._is_stopping():
                return
            if self._info is None:
                self._stop_at_start(name, end, 1)
                return
            seconds = time.monotonic() - began
            is_healthy = seconds > MIN_HEALTHY_SECONDS
            policy.record_end(made_progress=is_healthy, had_work=True, had_culprit=False, seconds=seconds)
            log.error("%s %s; another one is started", name, _described(end))
            pause = policy.backoff_seconds
            if policy.is_exhausted:
                if self._settings.restart_interval is None:
                    self._stop_because(f"{MAX_FAILED_STARTS} engines in a row failed")
                    return
                pause = self._settings.restart_interval
            await self._pause(pause)

    async def _keep_api(self, index: int) -> None:
        """Start an API process, and another one whenever it ends, unless it was drained."""
        policy, name = RestartPolicy(), f"API process {index}"
        has_been_ready = False
        while not self._is_stopping():
            began = time.monotonic()
            end = await self._run_api(index, name, replaces=has_been_ready)
            has_been_ready = has_been_ready or index in self._apis_ready
            if self._is_stopping():
                return
            if end == 0 or not has_been_ready:  # 0: drained by a request or SIGUSR1
                self._stop_at_start(name, end, end if isinstance(end, int) and end >= 0 else 1)
                return
            seconds = time.monotonic() - began
            policy.record_end(
                made_progress=seconds > MIN_HEALTHY_SECONDS, had_work=True, had_culprit=False, seconds=seconds
            )
            log.error("%s %s; another one is started", name, _described(end))
            if policy.is_exhausted:
                self._stop_because(f"{MAX_FAILED_STARTS} API processes in a row failed")
                return
            await self._pause(policy.backoff_seconds)

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._until(lambda: False), seconds)

    def _stop_at_start(self, name: str, end: End, status: int) -> None:
        """Stop because of a first process. One that was started has written its reason."""
        if not isinstance(end, int):
            self._stop_because(f"{name} {_described(end)}")
        self._stop(status)

    def _stop_because(self, reason: str) -> None:
        self._logs.write_plain(f"carousel: stopping with status 1, because {reason}")
        self._stop(1)

    async def _run_engine(self, index: int, name: str) -> End:
        """Start an engine, watch it, and return its end."""
        try:
            heartbeat = Heartbeat()
        except OSError as error:
            return error
        try:
            process = await self._start_engine(index, name, heartbeat)
        except (OSError, RuntimeError) as error:
            heartbeat.close()
            return error
        watching = asyncio.create_task(self._watch(process, heartbeat, name))
        status = await process.wait()
        watching.cancel()
        heartbeat.close()
        return status

    async def _start_engine(self, index: int, name: str, heartbeat: Heartbeat) -> Process:
        settings, share = self._settings, self._shares[index]
        config = share.apply_to(settings.engine)
        if self._info is not None:
            config = msgspec.structs.replace(config, num_pages=self._info.num_pages)
        listen = self._engine_sockets[index].fileno()

        def describe_child(status: int) -> EngineChild:
            return EngineChild(
                config=config,
                token=self._token,
                orphan_grace=ORPHAN_GRACE_SECONDS,
                drain_seconds=EXIT_SECONDS,
                log_level=settings.log_level,
                log_format=settings.log_format,
                listen=listen,
                heartbeat=heartbeat.fileno(),
                status=status,
                parent=os.getpid(),
            )

        with bound_to(share.cpus):
            return await self._start(
                name, "app.cli.supervised_engine", describe_child, (listen, heartbeat.fileno()), module_environment()
            )

    async def _run_api(self, index: int, name: str, *, replaces: bool) -> End:
        """Start an API process and return its end."""
        try:
            process = await self._start_api(index, name, replaces=replaces)
        except (OSError, RuntimeError) as error:
            return error
        return await process.wait()

    async def _start_api(self, index: int, name: str, *, replaces: bool) -> Process:
        listen, internal = self._listener.sock.fileno(), self._api_sockets[index].fileno()

        def describe_child(status: int) -> ApiChild:
            return ApiChild(
                flags=self._flags,
                index=index,
                ports=tuple(sock.getsockname()[1] for sock in self._api_sockets),
                engines=tuple(sock.getsockname()[1] for sock in self._engine_sockets),
                token=self._token,
                listen=listen,
                internal=internal,
                status=status,
                parent=os.getpid(),
                is_port_chosen=self._listener.known_port is not None,
                replaces=replaces,
            )

        environment = {**os.environ, "PYTHONPATH": module_environment()["PYTHONPATH"]}
        return await self._start(name, "app.cli.supervised_api", describe_child, (listen, internal), environment)

    async def _start(
        self, name: str, module: str, describe_child: Any, descriptors: tuple[int, ...], environment: dict[str, str]
    ) -> Process:
        """Start a process with its description, and follow its reports. Raises `OSError` and `RuntimeError`,
        if no process, thread or file descriptor is available.
        """
        ours, theirs = os.pipe()
        try:
            await self._begin_to_follow(name, os.fdopen(ours, "rb"))
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                module,
                stdin=asyncio.subprocess.PIPE,
                pass_fds=(*descriptors, theirs),
                env=environment,
                start_new_session=True,  # Ctrl-C in the terminal is handled by this process
            )
        finally:
            os.close(theirs)  # reports end with the process, or now if it was not started
        self._processes[name] = process
        assert process.stdin is not None
        with contextlib.suppress(ConnectionError):
            process.stdin.write(msgspec.msgpack.encode(describe_child(theirs)))
            await process.stdin.drain()
        process.stdin.close()
        if self._is_stopping():  # the signal came before the process
            process.terminate()
        return process

    async def _begin_to_follow(self, name: str, pipe: BinaryIO) -> None:
        reader = asyncio.StreamReader()
        loop = asyncio.get_running_loop()
        try:
            await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
        except BaseException:
            pipe.close()
            raise
        following = asyncio.create_task(self._follow(name, reader))
        self._following.add(following)
        following.add_done_callback(self._following.discard)
        following.add_done_callback(lambda _: pipe.close())

    async def _follow(self, name: str, reader: asyncio.StreamReader) -> None:
        async for line in reader:
            self._take(name, read_report(line))

    def _take(self, name: str, message: Report) -> None:
        match message:
            case Loading(stage, done, total):
                if self._info is None:
                    self._bar.show(stage, done, total)
                    self._manager.starting(f"Loading: {stage} {done} of {total}")
            case EngineReady(info):
                self._info = self._info or info
                log.info("%s is ready", name)
            case ApiReady():
                self._apis_ready.add(int(name.rpartition(" ")[2]))
        self._change()

    async def _watch(self, process: Process, heartbeat: Heartbeat, name: str) -> None:
        """End an engine that makes no progress while API processes ask it for signs of life."""
        count, seen_at, began = -1, time.monotonic(), time.monotonic()
        while process.returncode is None:
            await asyncio.sleep(HEARTBEAT_POLL_SECONDS)
            now = time.monotonic()
            limit = self._settings.watchdog_timeout
            if self._info is None or (now - began < MIN_LOADING_SECONDS and not count):
                limit = max(limit, MIN_LOADING_SECONDS) if limit < math.inf else limit
            if heartbeat.count != count or not self._apis_ready:
                count, seen_at = heartbeat.count, now
            elif now - seen_at > limit:
                log.error("%s has made no progress for %.0f s and is ended", name, now - seen_at)
                process.kill()
                return


def _loopback_socket() -> socket.socket:
    """Return a socket at a free port of this machine, at which a child process will listen."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    sock.bind((LOOPBACK, 0))
    return sock


def _described(end: End) -> str:
    """Return what has happened to a process, as the rest of a sentence."""
    if not isinstance(end, int):
        return f"could not be started: {end}"
    names = {one.value: one.name for one in signal.Signals}
    return f"ended with status {end}" if end >= 0 else f"ended by {names.get(-end, f'signal {-end}')}"


def supervise(settings: Settings, flags: Mapping[str, Any], logs: LogHandler) -> int:
    """Run a service of several API processes. Returns the exit status, negative for a signal to end the process with.

    Raises `ConfigError`.
    """
    try:
        supervisor = Supervisor(settings, flags, logs)
    except OSError as error:
        logs.write_plain(f"carousel: {error}")
        return 1
    return asyncio.run(supervisor.run())
