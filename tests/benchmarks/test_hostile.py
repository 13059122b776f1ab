"""The benchmark of hostile clients: the bytes that they send, the replies that they read, and one full case."""

from __future__ import annotations

import json
from collections.abc import Generator
from typing import Any

import pytest
from websockets.frames import Frame, Opcode
from websockets.streams import StreamReader

from app.errors import ApiError
from app.http.json_body import check_structure
from app.protocols.schema import parse
from app.protocols.tokens import DetokenizeRequest
from benchmarks import hostile_bodies as bodies
from benchmarks import hostile_clients as clients
from benchmarks.hostile import KINDS, lag_bucket, lag_counts, measure, misses, ratio

LIMIT_BYTES = 4 << 20  # of a body


def result_of(generator: Generator[None, None, Any]) -> Any:
    """Return the result of a parser that has its complete input."""
    with pytest.raises(StopIteration) as ended:
        next(generator)
    return ended.value.value


@pytest.mark.parametrize("size", [0, 125, 126, 65_535, 65_536])
def test_frames_are_those_of_a_client(size: int):
    """The library's parser reads masked frames with each encoding of the length."""
    reader = StreamReader()
    reader.feed_data(clients.frame(clients.TEXT, b"a" * size, fin=False))
    found = result_of(Frame.parse(reader.read_exact, mask=True))
    assert (found.opcode, found.fin, found.data) == (Opcode.TEXT, False, b"a" * size)
    reader.feed_eof()
    assert result_of(reader.at_eof())


def test_a_websocket_reply_ends_with_the_close_frame():
    """Bytes that arrive one by one give the number of text messages, and the code and reason of the close frame."""
    frames = [Frame(Opcode.TEXT, b"a" * size) for size in (1, 300, 70_000)]
    frames += [Frame(Opcode.PONG, b""), Frame(Opcode.CLOSE, b"\x03\xf0too much")]
    sent = b"HTTP/1.1 101 Switching Protocols\r\n\r\n" + b"".join(frame.serialize(mask=False) for frame in frames)
    reply = clients.WebSocketReply()
    outcomes = [reply.feed(sent[at : at + 1]) for at in range(len(sent))]
    assert outcomes[:-1] == [None] * (len(sent) - 1) and outcomes[-1] == "close 1008 too much"
    assert reply.messages == 3


def test_a_refused_handshake_is_an_outcome():
    """A WebSocket that is not opened has the status of the refusal as its outcome."""
    assert clients.WebSocketReply().feed(b"HTTP/1.1 403 Forbidden\r\n\r\n") == "HTTP 403"


def test_an_http_reply_has_status_and_code():
    """The outcome of a refused request is its status with the code of the error."""
    reply = clients.HttpReply()
    assert reply.feed(b"HTTP/1.1 400 Bad ") is None
    assert reply.feed(b"Request\r\nContent-Length: 37\r\n\r\n") is None
    assert reply.feed(b'{"error":{"code":"body_too_complex"}}') == "400 body_too_complex"


def test_bodies_are_within_the_limit_of_bytes_and_beyond_that_of_parts_and_keys():
    """Bodies that are refused for their structure are within the size limit, so they are read completely first."""
    for body in (bodies.many_parts(2200, 60), bodies.unknown_keys(350_000)):
        assert len(body) <= LIMIT_BYTES
        with pytest.raises(ApiError) as refused:
            check_structure(body)
        assert refused.value.code == "body_too_complex"
    for text in (bodies.one_message("<" * clients.SIZE), bodies.text_body(bodies.words(clients.SIZE))):
        assert len(text) <= LIMIT_BYTES
        check_structure(text)


def test_the_ids_to_detokenize_are_as_many_as_are_allowed():
    """One ID more is refused."""
    allowed, refused = ({"tokens": [300] * number} for number in (clients.MAX_IDS, clients.MAX_IDS + 1))
    assert len(parse(DetokenizeRequest, json.dumps(allowed).encode()).tokens) == clients.MAX_IDS
    with pytest.raises(ApiError):
        parse(DetokenizeRequest, json.dumps(refused).encode())


def test_the_lag_is_that_of_the_samples_between_two_readings():
    """Samples from before the window do not count."""
    name, bounds = "carousel:event_loop_lag_seconds_bucket", ("0.01", "0.05", "+Inf")
    before, after = (
        lag_counts("".join(f'{name}{{le="{le}",model_name="m"}} {n}\n' for le, n in zip(bounds, counts, strict=True)))
        for counts in ((5.0, 5.0, 9.0), (103.0, 105.0, 109.0))
    )
    assert lag_bucket(before, after, 0.98) == 0.01
    assert lag_bucket(before, after, 0.99) == 0.05


def test_a_window_without_tokens_misses_the_mark():
    """Stalled streams have no ratio, and their case is not a success."""
    still, moving = ({"between_tokens_ms": {"failures": []} | figures} for figures in ({}, {"p99": 5.0}))
    figures = {"health_ms": {"p99": 1.0, "failures": []}, "first_token_ms": {"failures": []}, "rss_peak_mb": 100.0}
    row = {
        "case": "pings",
        "between_tokens_p99_ratio": ratio(still, moving),
        "first_token_p50_ratios": {"short": 1.0, "long": 1.0},
        "rss_before_mb": 100.0,
        "attacked": still | figures,
    }
    assert row["between_tokens_p99_ratio"] is None
    assert len(misses(row)) == 1


def test_one_case_gives_a_row():
    """Pings at full speed are refused, while the streams and health checks of the same server continue."""
    row = measure("pings", 1.0)
    assert any(outcome.startswith("close 1008") for outcome in row["outcomes"])
    for window in (row["undisturbed"], row["attacked"]):
        assert all(window["first_token_ms"][kind]["count"] > 0 for kind in KINDS)
        assert not window["first_token_ms"]["failures"]
        assert window["between_tokens_ms"]["count"] > 0 and window["health_ms"]["count"] > 0
        assert not window["between_tokens_ms"]["failures"] and not window["health_ms"]["failures"]
        assert window["rss_peak_mb"] > 0 and window["lag_p99_s"] > 0
    assert row["between_tokens_p99_ratio"] > 0
