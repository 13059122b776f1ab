"""Strangers at an engine behind TCP: they are refused before they cost memory, and hold up no step."""

from __future__ import annotations

import logging
import os
import socket
import struct
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from engine.errors import ConfigError
from engine.handshake import REFUSAL_LOG_SECONDS, WRONG_TOKEN
from engine.ipc import MAX_HELLO_BYTES, PROTOCOL_VERSION, Hello, Ready, Refused, encode
from engine.listener import HELLO_SECONDS, MAX_STRANGERS, Listener
from engine.network import Address, bind, engine_tls, read_token
from tests.engine.api_ends import ApiEnd, TurnedWorker, fake_engine, request
from tests.fakes import text_alone

TOKEN = "a token of an engine"
HELLO = Hello(PROTOCOL_VERSION, TOKEN, "", "api")


class Door:
    """A listening worker, and sockets that have connected to it."""

    def __init__(self) -> None:
        sock = bind(Address("127.0.0.1", 0))
        self.address = sock.getsockname()
        info = msgspec.structs.replace(fake_engine().info, fingerprint="fp_ours")
        self.listener = Listener(sock, info, TOKEN, clock=lambda: self.worker.now)
        self.worker = TurnedWorker(self.listener)
        self.ends: list[ApiEnd] = []

    def connect(self, data: bytes = b"") -> ApiEnd:
        """Return a new connection that has sent some bytes."""
        self.ends.append(ApiEnd(socket.create_connection(self.address)))
        if data:
            self.ends[-1].socket.sendall(data)
        return self.ends[-1]

    def answer(self, data: bytes) -> object:
        """Return the first message to a connection that sends some bytes."""
        end = self.connect(data)
        self.worker.turn_until(end.read)
        return end.messages[0]

    def close(self) -> None:
        """Close all sockets."""
        self.worker.close()
        for end in self.ends:
            end.socket.close()


@pytest.fixture
def door() -> Iterator[Door]:
    opened = Door()
    yield opened
    opened.close()


@pytest.fixture
def busy(door: Door) -> ApiEnd:
    """Return an admitted connection with a request that runs during the test, so that the worker never waits."""
    end = door.connect(encode(HELLO))
    door.worker.turn_until(end.read)
    end.submit(request("busy", 3000))
    return end


def test_a_connection_with_the_token_is_served(door: Door):
    """`Ready` is the first answer, and requests follow."""
    end = door.connect(encode(HELLO))
    door.worker.turn_until(end.read)
    assert isinstance(end.messages[0], Ready)
    end.submit(request("r", 6))
    door.worker.turn_until(lambda: end.end("r"))
    assert end.tokens("r") == text_alone([1, 2], 0, 6)


@pytest.mark.parametrize(
    ("hello", "reason"),
    [
        (Hello(PROTOCOL_VERSION, "a token of another one", "", "api"), WRONG_TOKEN),
        (Hello(99, "a token of another one", "fp_theirs", "api"), WRONG_TOKEN),
        (Hello(99, TOKEN, "", "api"), f"the engine has version {PROTOCOL_VERSION} of the protocol"),
        (Hello(PROTOCOL_VERSION, TOKEN, "fp_theirs", "api"), "fingerprint fp_ours, and the API process expects fp_the"),
    ],
)
def test_a_wrong_first_frame_is_refused_with_a_reason(door: Door, busy: ApiEnd, hello: Hello, reason: str):
    """Without the token, the reason discloses nothing."""
    answer = door.answer(encode(hello))
    assert isinstance(answer, Refused) and reason in answer.reason
    door.worker.turn_until(lambda: door.ends[-1].read() or door.ends[-1].is_closed)
    assert len(door.worker.connections.all) == 1


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (struct.pack("<I", MAX_HELLO_BYTES + 1), f"at most {MAX_HELLO_BYTES} bytes"),
        (struct.pack("<I", 2**32 - 1) + b"x" * 100_000, f"at most {MAX_HELLO_BYTES} bytes"),
        (b"GET / HTTP/1.1\r\nHost: engine\r\n\r\n", f"at most {MAX_HELLO_BYTES} bytes"),
        (b"\x05\x00\x00\x00hello", "cannot be read"),
        (encode(Refused("a message of the other direction")), "cannot be read"),
        (encode(HELLO) + encode(HELLO), "more than one frame"),
        (encode(HELLO) + b"\x05", "more than one frame"),
    ],
)
def test_a_first_frame_that_is_none_is_refused(door: Door, busy: ApiEnd, data: bytes, reason: str):
    """It is oversized, malformed, of another protocol, or more than one."""
    answer = door.answer(data)
    assert isinstance(answer, Refused) and reason in answer.reason


def test_silence_is_refused_after_some_seconds(door: Door, busy: ApiEnd):
    """Also that of a connection that has sent half of its first frame."""
    silent, half = door.connect(), door.connect(encode(HELLO)[:20])
    door.worker.turn()
    began = door.worker.now
    door.worker.turn_until(silent.read)
    assert HELLO_SECONDS <= door.worker.now - began + 0.25 < HELLO_SECONDS + 1
    for end in (silent, half):
        end.read()
        assert [type(message) for message in end.messages] == [Refused] and end.is_closed
    assert door.listener.num_strangers == 0


@pytest.mark.parametrize("aborts", [False, True])
def test_a_connection_that_sends_nothing_leaves_no_line_in_the_log(door: Door, busy: ApiEnd, caplog, aborts: bool):
    """A health check opens one every few seconds, and closes or resets it; it holds no descriptor afterwards."""
    caplog.set_level(logging.INFO)
    end = door.connect()
    door.worker.turn_until(lambda: door.listener.num_strangers)
    if aborts:
        end.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    end.socket.close()
    door.worker.turn_until(lambda: not door.listener.num_strangers)
    assert caplog.messages == []
    door.connect(encode(HELLO)[:20]).socket.close()
    door.worker.turn_until(lambda: caplog.messages)
    assert "closed before its first frame" in caplog.text, "half a frame is reported"


def test_a_first_frame_may_come_byte_by_byte(door: Door, busy: ApiEnd):
    """Within its time."""
    end = door.connect()
    for byte in encode(HELLO):
        end.socket.sendall(bytes([byte]))
        if byte % 16 == 0:
            door.worker.turn()
            door.worker.now -= 0.25
    door.worker.turn_until(end.read)
    assert isinstance(end.messages[0], Ready)


def test_a_thousand_strangers_cost_little_and_stop_no_step(door: Door, busy: ApiEnd):
    """At most 64 wait at a time, an API process is admitted among them, and each step brings its token."""
    door.worker.turn(20)
    tokens = len(busy.tokens("busy"))
    tracemalloc.start()
    began = tracemalloc.get_traced_memory()[0]
    turns, most = 0, 0
    for number in range(1000):
        claimed = struct.pack("<I", MAX_HELLO_BYTES) + b"x" * 100
        end = door.connect((b"", claimed, os.urandom(30))[number % 3])
        if number % 16 == 0:
            door.worker.turn()
            turns += 1
            most = max(most, door.listener.num_strangers)
        if number % 4:
            end.socket.close()
            door.ends.remove(end)
    grown = tracemalloc.get_traced_memory()[0] - began
    tracemalloc.stop()
    assert most <= MAX_STRANGERS and grown < 2 << 20
    assert len(busy.tokens("busy")) >= tokens + turns
    late = door.connect(encode(msgspec.structs.replace(HELLO, process="late")))
    door.worker.turn_until(late.read)
    assert isinstance(late.messages[0], Ready)


def test_refusals_are_logged_at_a_limited_rate(door: Door, busy: ApiEnd, caplog: pytest.LogCaptureFixture):
    """The next line has the number of those without a line; none has the token."""
    wrong = encode(Hello(PROTOCOL_VERSION, "wrong" * 5, "", "x"))
    with caplog.at_level(logging.WARNING, "carousel.engine"):
        for _ in range(5):
            door.answer(wrong)
        door.worker.now += REFUSAL_LOG_SECONDS
        door.answer(wrong)
    first, second = [record.getMessage() for record in caplog.records]
    assert first == "a connection from 127.0.0.1 was refused: its token is not the engine's"
    assert second == f"{first}; 4 more since the last such line"


def test_after_the_listener_is_closed_connections_are_refused_by_the_system(door: Door, busy: ApiEnd):
    """Those that are admitted go on."""
    waiting = door.connect()
    door.worker.turn()
    door.worker.connections.stop_listening()
    waiting.read()
    assert waiting.is_closed
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(door.address)
    tokens = len(busy.tokens("busy"))
    door.worker.turn(5)
    assert len(busy.tokens("busy")) >= tokens + 5


# Options ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [("10.0.0.2:9400", "10.0.0.2", 9400), ("engine-1.local:1", "engine-1.local", 1), ("[::1]:9400", "::1", 9400)],
)
def test_an_address_has_host_and_port(text: str, host: str, port: int):
    """It is printed as it was given."""
    address = Address.parse(text, "listen")
    assert (address.host, address.port, str(address)) == (host, port, text)


@pytest.mark.parametrize(
    "text", ["", "9400", ":9400", "host", "host:", "host:99999", "::1:9400", "http://host:80", "a b:1"]
)
def test_a_text_that_is_no_address_is_refused_by_the_option_s_name(text: str):
    """The message has an example."""
    with pytest.raises(ConfigError, match=r"engines must be HOST:PORT, such as 10\.0\.0\.2:9400"):
        Address.parse(text, "engines")


def token_file(folder: Path, text: str, mode: int) -> str:
    path = folder / "token"
    path.write_text(text)
    path.chmod(mode)
    return str(path)


def test_a_token_is_read_without_the_white_space_around_it(tmp_path: Path):
    """Editors end files with a line feed."""
    assert read_token(token_file(tmp_path, f"{TOKEN}\n", 0o600)) == TOKEN
    assert read_token(token_file(tmp_path, "x" * 16, 0o400)) == "x" * 16


@pytest.mark.parametrize(
    ("text", "mode", "message"),
    [
        (TOKEN, 0o644, "its mode is 644; run chmod 600"),
        (TOKEN, 0o640, "its mode is 640"),
        (TOKEN, 0o602, "its mode is 602"),
        ("x" * 15, 0o600, "must have 16 to 1024 characters, got 15"),
        ("x" * 1025, 0o600, "got 1025"),
    ],
)
def test_a_token_that_others_can_read_or_guess_is_refused(tmp_path: Path, text: str, mode: int, message: str):
    """Group and others have no access, as ssh requires of a key."""
    with pytest.raises(ConfigError, match=message):
        read_token(token_file(tmp_path, text, mode))


def test_a_token_of_root_may_be_readable_for_the_group_of_another_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """As Kubernetes gives a Secret to a pod with an `fsGroup`; root itself and a file for everybody stay refused."""
    path = Path(token_file(tmp_path, TOKEN, 0o440))
    owner = 0
    real_stat = Path.stat

    def status(self: Path) -> os.stat_result:
        found = real_stat(self)
        return os.stat_result((*found[:4], owner, *found[5:]))

    monkeypatch.setattr(Path, "stat", status)
    monkeypatch.setattr(os, "geteuid", lambda: 10001)
    assert read_token(str(path)) == TOKEN
    for mode, user, user_of_file in ((0o440, 0, 0), (0o444, 10001, 0), (0o460, 10001, 0), (0o440, 10001, 10001)):
        path.chmod(mode)
        owner = user_of_file
        monkeypatch.setattr(os, "geteuid", lambda user=user: user)
        with pytest.raises(ConfigError, match=f"its mode is {mode:o}"):
            read_token(str(path))


def test_files_that_are_missing_are_refused_by_the_option_s_name(tmp_path: Path):
    """Token and certificate."""
    with pytest.raises(ConfigError, match="token_file: "):
        read_token(str(tmp_path / "none"))
    with pytest.raises(ConfigError, match=r"tls_cert .* cannot be used"):
        engine_tls(str(tmp_path / "none"), None)
