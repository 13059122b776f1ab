"""Tunnel of a WebSocket to the API process that serves it: bytes of both directions, as they come.

Frames are not parsed here. The other process counts them, answers pings, and closes; so close codes reach the client,
and a connection that is lost on one side is lost on the other.
"""

from __future__ import annotations

import asyncio

# Scope extension with one function: take() returns the connection of a handshake that is about to be accepted.
RAW_CONNECTION = "carousel.raw_connection"
READ_BYTES = 1 << 16


class RawConnection:
    """Connection of a client whose handshake is about to be accepted, and whose bytes are not parsed."""

    def __init__(self, transport: asyncio.Transport, writable: asyncio.Event, received: bytes) -> None:
        """writable: set while the client accepts data. received: bytes of a client that did not wait for the answer."""
        self._transport = transport
        self._writable = writable
        self._received = bytearray(received)
        self._has_more = asyncio.Event()  # bytes were received, or the connection has ended
        self._is_lost = False
        if received:
            self._has_more.set()
        else:
            transport.resume_reading()

    def receive(self, data: bytes) -> None:
        """Keep received bytes until they are read, and receive no more until then."""
        self._received += data
        self._transport.pause_reading()
        self._has_more.set()

    def end(self) -> None:
        """Note that the connection has ended."""
        self._is_lost = True
        self._has_more.set()

    async def read(self) -> bytes:
        """Return the next bytes; none if the connection has ended."""
        await self._has_more.wait()
        data = bytes(self._received)
        self._received.clear()
        if not self._is_lost:
            self._has_more.clear()
            self._transport.resume_reading()
        return data

    async def write(self, data: bytes) -> None:
        """Write once the client accepts data. Raises `ConnectionResetError` if the connection has ended."""
        await self._writable.wait()
        if self._is_lost or self._transport.is_closing():
            raise ConnectionResetError("the client has left")
        self._transport.write(data)


async def tunnel(
    client: RawConnection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, rest: bytes
) -> None:
    """Pass bytes on until one side ends. Each direction has one piece in memory beside the buffers of the sockets.

    rest: received with the answer to the handshake. Raises `OSError`.
    """

    async def up() -> None:
        while data := await client.read():
            writer.write(data)
            await writer.drain()

    async def down() -> None:
        data = rest
        while data or (data := await reader.read(READ_BYTES)):
            await client.write(data)
            data = b""

    pumps = [asyncio.create_task(up()), asyncio.create_task(down())]
    try:
        done, _ = await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for pump in pumps:
            pump.cancel()
        await asyncio.wait(pumps)
    for pump in done:
        pump.result()
