"""Following a log: the call that appends to the log also writes to a reader that has caught up. Waking a task per token
costs more than the write, and the tokens of a step are written serially, so every cost per token delays the last one
(docs/decisions/0017).

Independent of protocols: an encoder makes pieces from log items, and a writer accepts a piece at once or not at all.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Any, Generic, Protocol, TypeVar

from app.streams.stream_log import Item, Reader, StreamLog

# Scope extension with one function: write(piece) writes a piece of an answer that has begun, between two sent messages,
# and has finished when it returns. It returns False, with nothing written, if the socket has not yet accepted earlier
# data or is closed. A server without the extension behaves as if its sockets were always full. Pieces are bytes of a
# body for HTTP, and lists of text messages in UTF-8 for WebSockets.
DIRECT_WRITE = "carousel.at_once"

MAX_RECORDS_PER_TURN = 64  # records encoded into a piece before other tasks run

Piece = TypeVar("Piece")
Encoded = TypeVar("Encoded", covariant=True)
Writable = TypeVar("Writable", contravariant=True)


class ChunkEncoder(Protocol[Encoded]):
    """Encoder from log items to pieces of one protocol."""

    def encode(self, log: StreamLog, items: list[Item]) -> Encoded:
        """Return the piece for `items`, each of which is passed once and in order; empty if nothing is to be sent."""
        ...


class DirectWriter(Protocol[Writable]):
    """Destination of pieces."""

    @property
    def write(self) -> Callable[[Writable], bool]:
        """Return the function described at `DIRECT_WRITE`."""
        ...


def direct_write_of(scope: Any) -> Callable[[Any], bool]:
    """Return the direct-write function of a scope; a function that always refuses if it has none."""
    write: Callable[[Any], bool] = (scope.get("extensions") or {}).get(DIRECT_WRITE, {}).get("write", _refuse_piece)
    return write


def _refuse_piece(piece: object) -> bool:
    return False


class LogTailer(Generic[Piece]):
    """Callback of a log that has grown. Consists of few objects: each lies elsewhere in memory, and the engine's memory
    traffic between two tokens evicts all of them from the caches.
    """

    __slots__ = ("_encoder", "_log", "_reader", "_write", "rest")

    def __init__(
        self, log: StreamLog, reader: Reader, encoder: ChunkEncoder[Piece], write: Callable[[Piece], bool]
    ) -> None:
        self._log = log
        self._reader = reader
        self._encoder = encoder
        self._write = write
        self.rest: asyncio.Future[Piece | None] = asyncio.get_running_loop().create_future()

    def __call__(self) -> None:
        try:
            piece: Piece | None = self._encoder.encode(self._log, self._reader.read(MAX_RECORDS_PER_TURN))
            if not piece or self._write(piece):
                if not self._log.is_closed and not self._reader.is_behind:
                    return
                piece = None
        except Exception as error:
            self._stop(self.rest.set_exception, error)
        else:
            self._stop(self.rest.set_result, piece)

    def ping(self, piece: Piece) -> None:
        """End with `piece` as the data to be written."""
        self._stop(self.rest.set_result, piece)

    def _stop(self, resolve: Callable[[Any], None], result: Piece | Exception | None) -> None:
        self._log.unfollow(self)
        if not self.rest.done():  # its task may have been cancelled at this moment
            resolve(result)


async def stream_chunks(
    log: StreamLog,
    after: int,
    encoder: ChunkEncoder[Piece],
    writer: DirectWriter[Piece],
    ping: tuple[float, Piece] | None = None,
) -> AsyncGenerator[Piece]:
    """Yield the pieces of `log` after record `after` until the log is closed, except those that `writer` has accepted
    directly.

    ping: seconds, and the piece that is sent after so long without a record that woke the reader.
    """
    with Reader(log, after) as reader:
        while not reader.is_done:
            items = reader.read()
            for at in range(0, len(items), MAX_RECORDS_PER_TURN):
                if at:
                    await asyncio.sleep(0)
                if piece := encoder.encode(log, items[at : at + MAX_RECORDS_PER_TURN]):
                    yield piece
            if not items and (rest := await _follow(LogTailer(log, reader, encoder, writer.write), log, ping)):
                yield rest


async def _follow(follower: LogTailer[Piece], log: StreamLog, ping: tuple[float, Piece] | None) -> Piece | None:
    """Follow until the log is closed, the socket is full, or a ping is due. Return the piece that is left to write."""
    timer = None if ping is None else asyncio.get_running_loop().call_later(ping[0], follower.ping, ping[1])
    log.follow(follower)
    try:
        return await follower.rest
    finally:
        if timer is not None:
            timer.cancel()
        log.unfollow(follower)
