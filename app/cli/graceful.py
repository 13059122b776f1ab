"""GracefulServer: uvicorn's server with its own signal handlers, which drains before it stops."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import Callable, Iterator
from types import FrameType
from typing import cast

import uvicorn

from app.cli.acceptor import Acceptor
from app.cli.key_reload import KeyReload
from app.cli.listener import Listener
from app.cli.service_manager import ServiceManager
from app.http.connection import Connection
from app.service import Service

GOODBYE_SECONDS = 1.0  # for tasks without clients to end
TICKS_PER_POLL = 10  # a second: uvicorn ticks every 0.1 s
POLL_SECONDS = 0.1  # for a signal, while the model loads
HAND_OVER_SECONDS = 0.2  # for connections on their way to this server when its successor took over
FIRST_REQUEST_SECONDS = 1.0  # for the first request of a connection that was accepted before
HANG_UP_SECONDS = 2.0  # after the drain, for clients to receive the end of their answers; below uvicorn's own limit


class GracefulServer(uvicorn.Server):
    """SIGTERM, SIGINT, SIGUSR1 and `Service.draining` begin a drain; a second SIGTERM or SIGINT stops at once. SIGHUP
    reads keys and tenants again, unless it is ignored, as under nohup."""

    def __init__(
        self,
        config: uvicorn.Config,
        service: Service,
        keys: KeyReload,
        listener: Listener,
        manager: ServiceManager,
        internal: socket.socket | None = None,
    ) -> None:
        """internal: socket for requests of other API processes of the same service."""
        super().__init__(config)
        self.service = service
        self.listener = listener
        self._keys = keys
        self._internal = internal
        self._manager = manager
        self._accepts = asyncio.Event()
        service.has_successor = lambda: listener.has_successor
        if listener.accepts_when_loaded:
            service.before_accepting = self._wait_until_loaded

    @property
    def exit_status(self) -> int:
        """Return 0, or minus the first signal that stopped the server, with which the process is to end."""
        return -self._captured_signals[0] if self._captured_signals else 0

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle signals on the event loop. uvicorn's own version raises them again when the server has stopped, which
        ends the process before its last log lines are written."""
        loop = asyncio.get_running_loop()
        handlers: dict[int, Callable[[], None]] = {
            signal.SIGINT: lambda: self.handle_exit(signal.SIGINT, None),
            signal.SIGTERM: lambda: self.handle_exit(signal.SIGTERM, None),
            signal.SIGUSR1: self._begin_drain,
        }
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            handlers[signal.SIGHUP] = self._keys.reload
        for number, handler in handlers.items():
            loop.add_signal_handler(number, handler)
        try:
            yield
        finally:
            for number in handlers:
                loop.remove_signal_handler(number)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin a drain; on a second signal of either kind, stop without waiting for answers."""
        self.force_exit = self.force_exit or self.should_exit
        self._begin_drain()
        super().handle_exit(sig, frame)

    async def on_tick(self, counter: int) -> bool:
        """Stop after a request to drain; look at the keys file every second."""
        if counter % TICKS_PER_POLL == 0:
            self._keys.poll()
        self.should_exit = self.should_exit or self.service.draining
        return await super().on_tick(counter)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to accept connections: at once, or when the model is loaded, see `Listener`."""
        await super().startup([])
        sockets = [self.listener.sock, *([self._internal] if self._internal is not None else [])]
        self.servers = [cast(asyncio.Server, Acceptor(sock, self._connection, self.config.backlog)) for sock in sockets]
        if self.should_exit:
            await self.shutdown(sockets)
            self.started = False  # newer versions of uvicorn shut down once more if it is set
            return
        self.listener.take_over()
        self._accepts.set()

    async def accepts(self) -> None:
        """Wait until connections are accepted."""
        await self._accepts.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Drain, then stop. Without a successor the listening socket stays open during the drain, so that new requests
        are refused with a reason. WebSockets receive the end of their answers."""
        timeout = self.service.settings.drain_timeout
        self._manager.stopping(timeout)
        self.service.begin_drain()
        if self.service.hands_over:
            await self._hand_over()
        await self.service.drain(timeout, lambda: self.force_exit)
        hanging_up = asyncio.get_running_loop().call_later(HANG_UP_SECONDS, self._hang_up)
        await super().shutdown(sockets)
        hanging_up.cancel()
        if self.force_exit:  # uvicorn skips these steps after a forced exit
            self._hang_up()
            if self.server_state.tasks:
                await asyncio.wait(self.server_state.tasks, timeout=GOODBYE_SECONDS)
            await self.lifespan.shutdown()

    async def _wait_until_loaded(self) -> None:
        """Wait until the model is loaded, loading has failed, or the server is to stop."""
        loaded = asyncio.create_task(self.service.loaded())
        while not (loaded.done() or self.should_exit):
            await asyncio.wait((loaded,), timeout=POLL_SECONDS)
        if loaded.done():
            loaded.exception()  # is reported where loading is shown
        else:
            loaded.cancel()

    async def _hand_over(self) -> None:
        """Leave new connections to the successor, and close those without a request. One that was just accepted gets
        time for its first request, as its client would find it reset.
        """
        await asyncio.sleep(HAND_OVER_SECONDS)
        for server in self.servers:
            server.close()
        for _ in range(int(FIRST_REQUEST_SECONDS / POLL_SECONDS)):
            if not self._awaits_first_request():
                break
            await asyncio.sleep(POLL_SECONDS)
        for connection in list(self.server_state.connections):
            if isinstance(connection, Connection):
                connection.shutdown()  # after the answer in progress

    def _awaits_first_request(self) -> bool:
        """Return whether a connection was accepted and has sent no request yet."""
        return any(cast(Acceptor, server).is_starting for server in self.servers) or any(
            isinstance(connection, Connection) and connection.cycle is None
            for connection in self.server_state.connections
        )

    def _connection(self) -> asyncio.Protocol:
        """Return the protocol of a new connection, as uvicorn makes it."""
        make: Callable[..., asyncio.Protocol] = self.config.http_protocol_class
        return make(config=self.config, server_state=self.server_state, app_state=self.lifespan.state)

    def _begin_drain(self) -> None:
        self.service.begin_drain()

    def _hang_up(self) -> None:
        for connection in list(self.server_state.connections):
            connection.transport.abort()
