"""`carousel explain` with invalid addresses and with other servers."""

from __future__ import annotations

import asyncio
import io
import sys
from typing import Any

import pytest

from app.__main__ import main, print_text
from app.cli.bench.client import ServerUnreachable
from app.cli.explain import CACHE_TEXTS, cache_line, drafts_line, explain, timeline_lines
from app.streams.timeline import IntakeTimeline, RequestTimeline
from engine.cache_note import CacheMiss
from engine.drafting.note import DraftNote
from engine.types import Phase, StatusEvent, WaitReason
from tests.app.cli.test_bench import responding_with, serving


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (["--url", "http://127.0.0.1:abc"], 2),
        (["--url", "http://[::1"], 2),
        (["--url", "ftp://127.0.0.1"], 2),
        (["--api-key", "a\r\nX: b"], 2),
        (["--url", "127.0.0.1:1"], 1),
    ],
)
def test_invalid_options_and_unreachable_servers_give_one_line(arguments: list[str], status: int, capsys):
    """The status is 2 for an invalid URL or key and 1 if no server answers."""
    assert main(["explain", "an-id", *arguments]) == status
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == 1
    assert errors[0].startswith("carousel: ")


@pytest.mark.parametrize("body", [b"<html>", b"[]", b"null", b"5", b'{"object": "list"}', b'{"wall_ms": "long"}'])
async def test_a_response_that_is_no_timeline_is_reported(body: bytes):
    """This holds for any other response."""
    async with serving(
        responding_with(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
    ) as target:
        with pytest.raises(ServerUnreachable, match="is that the address of a server"):
            await asyncio.to_thread(explain, target.url, "an-id", None)


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b"SSH-2.0-OpenSSH_9.6\r\n", "does not speak HTTP"),
        (b"HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n", "answered 404$"),
        (b'HTTP/1.1 404 No\r\nContent-Length: 33\r\n\r\n{"error": {"message": "no such"}}', "404: no such"),
    ],
)
async def test_the_reason_for_a_missing_timeline_is_reported(raw: bytes, expected: str):
    """The text contains the server's message, if there is one."""
    async with serving(responding_with(raw)) as target:
        with pytest.raises(ServerUnreachable, match=expected):
            await asyncio.to_thread(explain, target.url, "an-id", None)


@pytest.mark.parametrize(
    ("encoding", "expected"),
    [("utf-8", "bär ██ 2 × –\n"), ("latin-1", "bär ## 2 x -\n"), ("ascii", "b?r ## 2 x -\n")],
)
def test_output_can_be_written_in_every_encoding(encoding: str, expected: str, monkeypatch):
    """Missing characters are replaced."""
    output = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    monkeypatch.setattr(sys, "stdout", output)
    print_text("bär ██ 2 × –")
    output.flush()
    assert output.buffer.getvalue().decode(encoding) == expected


def test_a_pause_by_the_client_is_explained():
    """It has neither a beneficiary nor a mechanism."""
    timeline = RequestTimeline(1, IntakeTimeline(0.0), 0.0)
    timeline.add(StatusEvent("r", 0, Phase.PAUSED, cause=WaitReason.CLIENT, monotonic_time=1.0))
    account = {"id": "r", "class": "batch", "state": "paused", "prompt_tokens": 1, "cached_tokens": 0, "cache": None}
    lines = timeline_lines(account | {"completion_tokens": 0} | timeline.view(3.0))
    assert lines[-1].startswith("   1.00 s +2.00 s    paused") and lines[-1].endswith("paused by its client")


NOTE = {
    "continues": "a1",
    "kept_seconds": 41.7,
    "expected_tokens": 8960,
    "reason": None,
    "by": None,
    "differs_at": None,
}
CACHE_LINES = [
    (8960, {}, "8,960 of 9,110 prompt tokens were in the cache, kept for 41 s"),
    (
        0,
        {"reason": "evicted", "by": "standard"},
        "0 of 9,110 prompt tokens were in the cache; 8,960 more: evicted for a request of class standard",
    ),
    (
        16,
        {"reason": "expired"},
        "16 of 9,110 prompt tokens were in the cache, kept for 41 s; 8,944 more: "
        "given up, after the time for which conversations are kept",
    ),
    (
        112,
        {"expected_tokens": 112, "differs_at": 123, "before": "10:21\n", "after": "10:22\n"},
        "112 of 9,110 prompt tokens were in the cache, kept for 41 s; "
        'the prompt differs from that of request a1 at token 123: "10:21\\n" became "10:22\\n"',
    ),
    (
        112,
        {"expected_tokens": 112, "differs_at": 112, "continues": None, "before": "", "after": ""},
        "112 of 9,110 prompt tokens were in the cache, kept for 41 s; "
        "the prompt differs from that of an earlier request after token 112",
    ),
    (
        0,
        {"expected_tokens": 0, "reason": "unknown", "continues": None, "kept_seconds": None},
        "0 of 9,110 prompt tokens were in the cache: this engine had no earlier request of this client",
    ),
    (
        32,
        {"expected_tokens": 0, "reason": "unknown", "continues": None, "kept_seconds": None},
        "32 of 9,110 prompt tokens were in the cache",
    ),
]


@pytest.mark.parametrize(("cached", "note", "line"), CACHE_LINES)
def test_the_cache_is_explained(cached: int, note: dict[str, object], line: str):
    """The line has what was found, for how long it was kept, and why there was not more."""
    assert cache_line(cached, 9110, NOTE | note) == line


def test_every_reason_of_the_engine_has_a_text():
    """No code is printed."""
    assert set(CACHE_TEXTS) == set(CacheMiss)


DRAFT_LINES = [
    (
        {"tokens": 1412, "steps": 1160, "accepted": {"lookup": 212, "grammar": 40}},
        "decode: 1,412 tokens in 1,160 steps (1.2 a step; lookup 212, grammar 40)",
    ),
    (
        {"tokens": 9, "steps": 9, "accepted": {"lookup": 0}},
        "decode: 9 tokens in 9 steps (1.0 a step; no draft was right)",
    ),
    ({"tokens": 0, "steps": 0, "accepted": {}}, "decode: 0 tokens in 0 steps (no draft was right)"),
]


@pytest.mark.parametrize(("drafts", "line"), DRAFT_LINES)
def test_drafts_are_explained(drafts: dict[str, Any], line: str):
    """The line has the tokens of a step, and the accepted ones by source."""
    assert drafts_line(drafts) == line


def test_only_a_choice_with_drafts_has_a_line_of_them():
    """Its line is the first under its name."""
    timeline = RequestTimeline(2, IntakeTimeline(0.0), 0.0)
    timeline.add(StatusEvent("r", 1, Phase.DECODE, monotonic_time=1.0))
    note = DraftNote(2, {"lookup": 7}, {"lookup": 4})
    timeline.add(StatusEvent("r", 1, Phase.ENDED, monotonic_time=2.0, draft_note=note))
    account = {"id": "r", "class": "batch", "state": "ended", "prompt_tokens": 1, "cached_tokens": 0, "cache": None}
    lines = timeline_lines(account | {"completion_tokens": 6} | timeline.view(3.0))
    assert [line for line in lines if "tokens in" in line] == ["decode: 6 tokens in 2 steps (3.0 a step; lookup 4)"]
    assert lines.index("\nChoice 1") + 1 == lines.index("decode: 6 tokens in 2 steps (3.0 a step; lookup 4)")
