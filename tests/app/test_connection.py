"""What a connection offers to an answer that is streamed."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

import pytest

from app.connection import write

LOOPS = [asyncio.new_event_loop]
try:
    import uvloop

    LOOPS.append(uvloop.new_event_loop)
except ImportError:  # there is none for every system
    pass


@pytest.mark.parametrize("loop", LOOPS)
def test_what_a_full_socket_does_not_take_is_not_kept(loop: Callable[[], asyncio.AbstractEventLoop]):
    """The writer hears it, and the pieces that were taken are on the wire, whole and in order."""

    async def play() -> None:
        ours, theirs = socket.socketpair()
        transport, _ = await asyncio.get_running_loop().create_connection(asyncio.Protocol, sock=ours)
        await asyncio.sleep(0)
        theirs.setblocking(False)
        try:
            await talk(transport, theirs)
        finally:
            transport.abort()
            theirs.close()

    async def talk(transport: asyncio.Transport, theirs: socket.socket) -> None:
        expected = bytearray()
        for number in range(1_000):
            piece = b"%d " % number * 1000
            if not write(transport, piece):
                break
            expected += b"%x\r\n%b\r\n" % (len(piece), piece)
        assert 0 < number < 999
        kept = transport.get_write_buffer_size()
        assert kept > 0 and not write(transport, b"more") and transport.get_write_buffer_size() == kept
        heard = bytearray()
        async with asyncio.timeout(10):
            while len(heard) < len(expected):
                heard += await asyncio.get_running_loop().sock_recv(theirs, 1 << 20)
        assert heard == expected
        assert write(transport, b"x") and theirs.recv(100) == b"1\r\nx\r\n"
        transport.close()
        assert not write(transport, b"y")

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(play())
