"""TcpEngine: transport to an engine that another process has started, over TCP. Independent of requests."""

from __future__ import annotations

import asyncio
import itertools
import logging
import ssl
import time
from collections.abc import Callable, Iterator
from uuid import uuid4

from app.engine_client.channel import Channel
from app.engine_client.transport import MessageHandler
from engine.config import EngineConfig
from engine.ipc import (
    PROTOCOL_VERSION,
    FromEngine,
    Hello,
    LoadProgress,
    Ready,
    Refused,
    ReleaseOrphans,
    StepResult,
    ToEngine,
)
from engine.network import Address
from engine.types import ModelInfo

log = logging.getLogger("carousel.client")

CONNECT_SECONDS = 10.0  # for a connection and the engine's answer
# Delay after the first failed connection, doubled for each further one, and its maximum.
INITIAL_RETRY_SECONDS, MAX_RETRY_SECONDS = 0.25, 5.0
REPORT_SECONDS = 30.0  # between two log lines about an engine that cannot be reached for the same reason


class EngineAccess:
    """Token, certificates and name with which this process connects to engines, and the model that they have."""

    def __init__(
        self,
        token: str,
        tls: ssl.SSLContext | None = None,
        vocab_size: int | None = None,
        wait_level: int = logging.WARNING,
    ) -> None:
        """tls: None for connections without encryption. vocab_size: of the own model files; None: unknown. wait_level:
        of log lines about an engine that cannot be reached.
        """
        self.token = token
        self.wait_level = wait_level
        self._vocab_size = vocab_size
        self.tls = tls
        self.process = uuid4().hex
        self.fingerprint = ""  # that an engine must have; empty: any

    def check(self, info: ModelInfo) -> None:
        """Raise `ConnectionError` for a model that does not fit the tokenizer."""
        if self._vocab_size not in (None, info.vocab_size):
            raise ConnectionError(
                f"its model {info.name!r} has {info.vocab_size} tokens, but the model of this server has "
                f"{self._vocab_size}; both must be given the same model"
            )


class TcpEngine:
    """`Transport` to an engine behind TCP. It tries to connect until it is admitted, and reports its loss afterwards.

    Requests that were sent over an earlier connection, and that the member sends again, continue where they are.
    """

    replacement = "it is connected to again"
    shares_clock = False  # not even on the same machine, so that there is one way
    exit_description = ""

    def __init__(
        self,
        on_message: MessageHandler,
        on_loss: Callable[[str], None],
        address: Address,
        access: EngineAccess,
        server_name: str | None = None,
    ) -> None:
        """server_name: that the engine's certificate must include; None: the host of its address."""
        self.heartbeat_count = 0
        self._on_message = on_message
        self._on_loss = on_loss
        self._address = address
        self._access = access
        self._server_name = server_name if access.tls is not None else None
        self._channel: Channel | None = None
        self._answer: asyncio.Future[None] | None = None  # to the first frame of the current connection
        self._is_admitted = False
        self._connecting: asyncio.Task[None] | None = None

    async def start(self, config: EngineConfig) -> None:
        """Begin to connect. Returns at once. The engine was configured by its own options."""
        self._connecting = asyncio.create_task(self._connect())

    def send(self, *messages: ToEngine) -> None:
        """Send messages in one write; do nothing without an engine."""
        if self._is_admitted and self._channel is not None:
            self._channel.send(messages)

    def reject(self, why: str) -> bool:
        """Close the connection and try again later, as the engine may be replaced by its operator."""
        self._is_admitted = False
        self._settle(ConnectionRefusedError(f"it is not used: {why}"))
        return True

    def abandon(self, why: str) -> None:
        """Close the connection, or stop to try, and report the loss."""
        if self._is_admitted and self._channel is not None:
            self._channel.give_up(why)
        elif self._connecting is not None:
            self._connecting.cancel()
            self._on_loss(why)

    async def close(self, grace_seconds: float) -> None:
        """Close the connection. The engine goes on."""
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.wait((self._connecting,))
        if self._channel is not None:
            self._channel.close()

    async def _connect(self) -> None:
        """Connect, as often as it takes."""
        pause, reported, reported_at = INITIAL_RETRY_SECONDS, "", 0.0
        for attempt in itertools.count(1):
            try:
                await self._try()
            except TimeoutError:
                problem = f"no answer within {CONNECT_SECONDS:g} s"
            except OSError as error:
                problem = str(error)
            else:
                return
            if problem != reported or time.monotonic() - reported_at >= REPORT_SECONDS:
                reported, reported_at = problem, time.monotonic()
                log.log(self._access.wait_level, "waiting for engine %s: %s", self._address, problem)
            for _ in self._on_message(LoadProgress("connect", attempt, attempt + 1)):
                pass
            await asyncio.sleep(pause)
            pause = min(2 * pause, MAX_RETRY_SECONDS)

    async def _try(self) -> None:
        """Connect, and wait until this process is admitted. Raises `OSError`."""
        loop = asyncio.get_running_loop()
        self._answer = loop.create_future()
        channel = self._channel = Channel(
            self._receive, self._lose, f"the connection to engine {self._address} was closed"
        )
        access, address = self._access, self._address
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                await loop.create_connection(
                    lambda: channel, address.host, address.port, ssl=access.tls, server_hostname=self._server_name
                )
                channel.send((Hello(PROTOCOL_VERSION, access.token, access.fingerprint, access.process),))
                await self._answer
        except BaseException:
            channel.close()
            raise

    def _receive(self, message: FromEngine) -> Iterator[None]:
        match message:
            case StepResult(heartbeat=count):
                self.heartbeat_count = count
            case Refused(reason):
                self._settle(ConnectionRefusedError(f"it refuses the connection: {reason}"))
                return iter(())
            case Ready(info):
                try:
                    self._access.check(info)
                except ConnectionError as error:
                    self._settle(error)
                    return iter(())
                self._is_admitted = True
                events = self._on_message(message)  # sends the requests that are to continue, or calls `reject`
                if self._is_admitted:
                    self.send(ReleaseOrphans())
                    self._settle(None)
                return events
        return self._on_message(message) if self._is_admitted else iter(())

    def _lose(self, why: str) -> None:
        if self._is_admitted:
            self._on_loss(why)
        else:
            self._settle(ConnectionError(why))

    def _settle(self, error: OSError | None) -> None:
        """Set the outcome of the current attempt."""
        assert self._answer is not None
        if self._answer.done():
            return
        if error is None:
            self._answer.set_result(None)
        else:
            self._answer.set_exception(error)
