"""Log lines about a request name the client's request ID, in text and in JSON."""

from __future__ import annotations

import json
import logging

import msgspec
import pytest

from engine.log_queue import JsonFormatter
from engine.request_logging import log_request
from engine.types import Request, SamplingParams

log = logging.getLogger("carousel.test")


def request(client_id: str = "") -> Request:
    return Request(id="abc", prompt=(1,), sampling=SamplingParams(max_tokens=1), client_id=client_id)


@pytest.mark.parametrize(
    ("client_id", "text", "fields"),
    [
        ("", "request abc: 3 of %", {"request_id": "abc"}),
        ("100%s", "request 100%s (stream abc): 3 of %", {"request_id": "100%s", "stream": "abc"}),
    ],
)
def test_a_line_names_the_client_s_id_and_the_stream(caplog, client_id: str, text: str, fields: dict[str, str]):
    """Without a client ID only the stream is named; a percent sign in an ID is not a placeholder."""
    with caplog.at_level(logging.INFO):
        log_request(log, logging.INFO, request(client_id), "%d of %%", 3)
        log_request(log, logging.DEBUG, request(client_id), "not logged")
    [record] = caplog.records
    assert record.getMessage() == text
    line = json.loads(JsonFormatter().format(record))
    assert {name: line[name] for name in ("message", *fields)} == {"message": text, **fields}
    assert ("stream" in line) == ("stream" in fields)


def test_a_traceback_is_added_on_demand(caplog):
    """The line ends with the exception that is being handled."""
    try:
        raise ValueError("a mistake")
    except ValueError:
        log_request(log, logging.ERROR, request("mine"), "failed", has_traceback=True)
    assert "a mistake" in json.loads(JsonFormatter().format(caplog.records[0]))["exception"]


def test_the_encoding_of_a_request_without_a_client_id_is_unchanged():
    """The empty field is omitted from the encoding."""
    assert b"client_id" not in msgspec.msgpack.encode(request())
    encoded = msgspec.msgpack.encode(request("mine"))
    assert msgspec.msgpack.decode(encoded, type=Request) == request("mine")
