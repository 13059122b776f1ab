"""Following a log: a reader that has caught up is written to by the very call that makes the log grow, then and there.
To wake a task for a token would cost more than the token does, and the tokens of a step go out one after another: the
last waits for what is done for all others (docs/decisions/0017).

Knows nothing of protocols: an encoder makes pieces of what the log has, and a writer takes them at once or not at all.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Any, Generic, Protocol, TypeVar

from app.streams import Item, Reader, StreamLog

# A scope's extension with one function: write(piece) writes a piece of an answer that has begun, between two messages
# that are sent, and is done when it returns. False, and nothing is written, where the socket has not yet taken what was
# written before, or is gone. A server without it is like one whose sockets are always full. Pieces are bytes of a body
# for HTTP, lists of text messages in UTF-8 for WebSockets.
AT_ONCE = "carousel.at_once"

SLICE = 64  # records turned into a piece before others have their turn

Piece = TypeVar("Piece")
Made = TypeVar("Made", covariant=True)
Taken = TypeVar("Taken", contravariant=True)


class PieceEncoder(Protocol[Made]):
    """Makes pieces of one protocol."""

    def encode(self, log: StreamLog, items: list[Item]) -> Made:
        """What a reader is sent for `items`, each of which it sees once and in order; something empty for nothing."""
        ...


class Writer(Protocol[Taken]):
    """Where pieces go."""

    @property
    def write(self) -> Callable[[Taken], bool]:
        """As `AT_ONCE` says."""
        ...


def write_of(scope: Any) -> Callable[[Any], bool]:
    """How to write at once to whom a scope is of."""
    write: Callable[[Any], bool] = (scope.get("extensions") or {}).get(AT_ONCE, {}).get("write", _never)
    return write


def _never(piece: object) -> bool:
    return False


class _Follower(Generic[Piece]):
    """What a log calls when it has grown. Made of few objects: each lies somewhere else in memory, and what the engine
    reads between two tokens leaves none of them in a cache.
    """

    __slots__ = ("_encoder", "_log", "_reader", "_write", "rest")

    def __init__(
        self, log: StreamLog, reader: Reader, encoder: PieceEncoder[Piece], write: Callable[[Piece], bool]
    ) -> None:
        self._log = log
        self._reader = reader
        self._encoder = encoder
        self._write = write
        self.rest: asyncio.Future[Piece | None] = asyncio.get_running_loop().create_future()

    def __call__(self) -> None:
        try:
            piece: Piece | None = self._encoder.encode(self._log, self._reader.take())
            if not piece or self._write(piece):
                if not self._log.is_closed:
                    return
                piece = None
        except Exception as error:
            self._stop(self.rest.set_exception, error)
        else:
            self._stop(self.rest.set_result, piece)

    def ping(self, piece: Piece) -> None:
        """Have `piece` written."""
        self._stop(self.rest.set_result, piece)

    def _stop(self, tell: Callable[[Any], None], what: Piece | Exception | None) -> None:
        self._log.unfollow(self)
        if not self.rest.done():  # who waits may have been cancelled at this moment
            tell(what)


async def pieces(
    log: StreamLog,
    after: int,
    encoder: PieceEncoder[Piece],
    writer: Writer[Piece],
    ping: tuple[float, Piece] | None = None,
) -> AsyncGenerator[Piece]:
    """What a reader is to be sent of `log` behind record `after`, until that is closed, but for all that `writer` has
    taken by itself. ping: seconds, and what is sent when nothing but tokens was for so long.
    """
    with Reader(log, after) as reader:
        while not reader.is_done:
            items = reader.take()
            for at in range(0, len(items), SLICE):
                if at:
                    await asyncio.sleep(0)
                if piece := encoder.encode(log, items[at : at + SLICE]):
                    yield piece
            if not items and (rest := await _follow(_Follower(log, reader, encoder, writer.write), log, ping)):
                yield rest


async def _follow(follower: _Follower[Piece], log: StreamLog, ping: tuple[float, Piece] | None) -> Piece | None:
    """Until the log is closed, the socket full, or it is time for a ping: what is left to be written."""
    timer = None if ping is None else asyncio.get_running_loop().call_later(ping[0], follower.ping, ping[1])
    log.follow(follower)
    try:
        return await follower.rest
    finally:
        if timer is not None:
            timer.cancel()
        log.unfollow(follower)
