"""GracefulServer: uvicorn's server with its own signal handlers, which drains before it stops."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import Callable, Iterator
from types import FrameType

import uvicorn

from app.cli.key_reload import KeyReload
from app.service import Service

GOODBYE_SECONDS = 1.0  # for tasks without clients to end
TICKS_PER_POLL = 10  # a second: uvicorn ticks every 0.1 s
HANG_UP_SECONDS = 2.0  # after the drain, for clients to receive the end of their answers; below uvicorn's own limit


class GracefulServer(uvicorn.Server):
    """SIGTERM, SIGINT, SIGUSR1 and `Service.draining` begin a drain; a second SIGTERM or SIGINT stops at once. SIGHUP
    reads keys and tenants again, unless it is ignored, as under nohup."""

    def __init__(
        self,
        config: uvicorn.Config,
        service: Service,
        drain_timeout: float,
        keys: KeyReload,
    ) -> None:
        super().__init__(config)
        self._service = service
        self._drain_timeout = drain_timeout
        self._keys = keys

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
        self.should_exit = self.should_exit or self._service.draining
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Drain, then stop. The listening socket stays open during the drain, so that new requests are refused with a
        reason and WebSockets receive the end of their answers."""
        await self._service.drain(self._drain_timeout, lambda: self.force_exit)
        hanging_up = asyncio.get_running_loop().call_later(HANG_UP_SECONDS, self._hang_up)
        await super().shutdown(sockets)
        hanging_up.cancel()
        if self.force_exit:  # uvicorn skips these steps after a forced exit
            self._hang_up()
            if self.server_state.tasks:
                await asyncio.wait(self.server_state.tasks, timeout=GOODBYE_SECONDS)
            await self.lifespan.shutdown()

    def _begin_drain(self) -> None:
        self._service.draining = True

    def _hang_up(self) -> None:
        for connection in list(self.server_state.connections):
            connection.transport.abort()
