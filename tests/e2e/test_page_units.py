"""The page's pure modules, tested in a browser."""

from __future__ import annotations

import json

import pytest

from app.cli import explain
from engine.cache_note import CacheMiss
from engine.types import PreemptionMode, WaitReason
from tests.app.cli.test_explain import CACHE_LINES, DRAFT_LINES, NOTE
from tests.e2e.conftest import Run

pytestmark = pytest.mark.browser

STREAM = (
    ": ping\r\n\r\n"
    'id: s.0.1\rdata: {"a":1}\r\r'
    "data: first\ndata: second\n\n"
    ': carousel {"state":"queued","position":2}\n\n'
    "event: odd\nid: s.0.2\ndata:no space ✓ 狐 🦊\n\n"
    "id: bare\n\n"
    "data: [DONE]\r\n\r\n"
    "data: cut off"
)
PARTS = [
    {"kind": "comment", "text": "ping"},
    {"kind": "event", "id": "s.0.1", "event": "message", "data": '{"a":1}'},
    {"kind": "event", "id": "s.0.1", "event": "message", "data": "first\nsecond"},
    {"kind": "comment", "text": 'carousel {"state":"queued","position":2}'},
    {"kind": "event", "id": "s.0.2", "event": "odd", "data": "no space ✓ 狐 🦊"},
    {"kind": "event", "id": "bare", "event": "message", "data": "[DONE]"},
]


@pytest.mark.parametrize("size", [1, 2, 3, 5, 1000])
def test_sse_parsing_does_not_depend_on_chunks(run: Run, size: int) -> None:
    """CR, LF, CRLF and UTF-8 split at any byte give the same events, and an event without its end is dropped."""
    parts = run(
        "sse.js",
        """
        const bytes = new TextEncoder().encode(arg.text), parser = new m.SseParser(), out = [];
        for (let at = 0; at < bytes.length; at += arg.size) out.push(...parser.push(bytes.slice(at, at + arg.size)));
        return out;""",
        {"text": STREAM, "size": size},
    )
    assert parts == PARTS


def test_sse_refuses_an_endless_line(run: Run) -> None:
    """An endless line is an error instead of unbounded memory."""
    assert run(
        "sse.js",
        """
        const parser = new m.SseParser(), chunk = new Uint8Array(1024 * 1024).fill(97);
        try { for (let i = 0; i < 20; i++) parser.push(chunk); } catch (error) { return error instanceof m.SseTooLong; }
        return false;""",
    )


def test_a_silent_stream_is_abandoned(run: Run) -> None:
    """Reading ends with Stalled if not even a ping arrives."""
    assert run(
        "sse.js",
        """
        const response = new Response(new ReadableStream({}));
        try { for await (const _ of m.readParts(response, 30)); } catch (error) { return error instanceof m.Stalled; }
        return false;""",
    )


@pytest.mark.parametrize(
    ("headers", "ms"),
    [
        ({"retry-after-ms": "1500", "retry-after": "9"}, 1500),
        ({"retry-after": "3"}, 3000),
        ({"retry-after": "0"}, 0),
        ({}, None),
        ({"retry-after": "soon"}, None),
    ],
)
def test_retry_after_is_read(run: Run, headers: dict[str, str], ms: int | None) -> None:
    """Milliseconds have precedence over seconds, and invalid values are ignored."""
    assert run("api.js", "return m.retryAfter(new Headers(arg));", headers) == ms


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("a\n\nb", ["text:a", "text:b"]),
        ("```py\nx\n```\nb", ["code:x", "text:b"]),
        ("a\n```\nx", ["text:a", "code:x"]),
        ("- a\n\n- b\n\nc", ["text:- a\n\n- b", "text:c"]),
        (
            "- a\n\n  ```\n  # no heading\n\n  - no item\n  ```\n\nc",
            ["text:- a\n\n  ```\n  # no heading\n\n  - no item\n  ```", "text:c"],
        ),
        ("# h\ntext", ["text:# h", "text:text"]),
        ("````\n```\n````", ["code:```"]),
        ("~~~\n```\n~~~\n", ["code:```"]),
        ("a\r\nb\r\n\r\nc", ["text:a\nb", "text:c"]),
    ],
)
def test_text_is_cut_into_blocks(run: Run, text: str, kinds: list[str]) -> None:
    """Blocks end where Markdown allows it, for any size of the chunks."""
    for size in (1, 3, 1000):
        assert (
            run(
                "blocks.js",
                """
            const splitter = new m.BlockSplitter(), out = [];
            for (let at = 0; at < arg.text.length; at += arg.size)
                out.push(...splitter.push(arg.text.slice(at, at + arg.size)));
            out.push(...splitter.finish());
            return out.map(({ kind, source }) => `${kind}:${source.trimEnd()}`);""",
                {"text": text, "size": size},
            )
            == kinds
        )


def test_an_endless_line_is_split_and_complete(run: Run) -> None:
    """1 MB without a line end becomes plain pieces that add up to it."""
    sizes = run(
        "blocks.js",
        """
        const splitter = new m.BlockSplitter(), out = [];
        for (let i = 0; i < 1000; i++) out.push(...splitter.push("x".repeat(1000)));
        out.push(...splitter.finish());
        return out.map(({ source }) => source.length);""",
    )
    assert sum(sizes) == 1_000_000
    assert max(sizes) <= 16_000


def test_positions_are_ordinal_numbers(run: Run) -> None:
    """The position is an ordinal number."""
    assert run("labels.js", "return [1, 2, 3, 4, 11, 12, 13, 21, 102, 111].map(m.ordinal);") == [
        "1st",
        "2nd",
        "3rd",
        "4th",
        "11th",
        "12th",
        "13th",
        "21st",
        "102nd",
        "111th",
    ]


def test_page_and_explain_word_reasons_alike(run: Run) -> None:
    """The pages and `carousel explain` have the same text for each reason to wait, preemption mode, and loss of the cache."""
    texts = run("labels.js", "return [m.CAUSE_TEXTS, m.MECHANISM_TEXTS, m.CACHE_TEXTS];")
    assert texts == [explain.CAUSE_TEXTS, explain.MECHANISM_TEXTS, explain.CACHE_TEXTS]
    assert [set(table) for table in texts] == [set(WaitReason), set(PreemptionMode), set(CacheMiss)]


def test_page_and_explain_word_the_cache_alike(run: Run) -> None:
    """Both have the same line for every note."""
    notes = [(cached, NOTE | note) for cached, note, _ in CACHE_LINES]
    lines = run("labels.js", f"return {json.dumps(notes)}.map(([cached, note]) => m.cacheLine(cached, 9110, note));")
    assert lines == [line for _, _, line in CACHE_LINES]


def test_page_and_explain_word_drafts_alike(run: Run) -> None:
    """Both have the same line for every choice."""
    lines = run("labels.js", f"return {json.dumps([drafts for drafts, _ in DRAFT_LINES])}.map(m.draftsLine);")
    assert lines == [line for _, line in DRAFT_LINES]


def test_only_chosen_settings_are_sent(run: Run) -> None:
    """The request has the conversation's own settings, leaves the rest to the server, and omits empty answers."""
    body = run(
        "sampling.js",
        """return m.requestFor({ system: " ", sampling: { seed: 7, stop: ["\\n"] } },
        [{ role: "user", content: "a" }, { role: "assistant", content: "" }, { role: "user", content: "b" }],
        "demo", "default");""",
    )
    assert body == {
        "model": "demo",
        "messages": [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "service_tier": "default",
        "seed": 7,
        "stop": ["\n"],
    }


@pytest.mark.parametrize("n", [1, 4, 16, 40, 41, 96, 97, 180, 256, 512])
def test_every_slot_has_a_place_and_no_two_overlap(run: Run, n: int) -> None:
    """From 4 to 256 slots and beyond, each slot is drawn once, apart from its neighbours and outside of the hub."""
    places = run(
        "engine/slot_layout.js",
        """return m.layOutSlots(arg).slots.map(({ radius, angle, size }) =>
            [radius * Math.cos(angle), radius * Math.sin(angle), size]);""",
        n,
    )
    assert len(places) == n
    for i, (x, y, size) in enumerate(places):
        assert (x * x + y * y) ** 0.5 - size > 100
        for u, v, other in places[:i]:
            assert ((x - u) ** 2 + (y - v) ** 2) ** 0.5 > (size + other) * 0.98


def test_pauses_are_derived_from_snapshots(run: Run) -> None:
    """A pause, its end, and unseen short pauses each give one event; those before the first snapshot give none."""
    events = run(
        "engine/pauses.js",
        """
        const pauses = new m.Pauses();
        const look = (t, slots, paused, swap) =>
            pauses.read({ t, slots, paused, preemptions: { swap, partial: 0, recompute: 0 } }).map(m.describePause);
        const batch = { request: "4f2a", class: "batch" }, person = { request: "91cc", class: "interactive" };
        return [look(1, [batch], [{ request: "old", class: "batch", by: "standard", mechanism: "swap" }], 5),
                look(2, [person, null], [{ ...batch, by: "interactive", mechanism: "swap" }], 6),
                look(3.5, [batch, null], [], 8)];""",
    )
    assert events[0] == []
    assert "paused batch 4f2a for interactive, pages kept in host memory" in events[1]
    assert events[2] == ["resumed batch 4f2a after 1.5\u00a0s", "2 pauses were too short to be listed"]


def test_the_gain_of_drafts_is_that_of_the_last_seconds(run: Run) -> None:
    """It is unknown without earlier totals, without drafts, and after a restart."""
    gains = run(
        "engine/drafts.js",
        """
        const drafts = new m.Drafts();
        const look = (t, steps, drafted, accepted) => drafts.read({ t, drafts: { steps, drafted, accepted } });
        return [look(1, 100, 700, 0), look(3, 110, 740, 25), look(7, 110, 740, 25), look(9, 110, 740, 25),
                look(10, 2, 4, 1), look(11, 4, 12, 5)];""",
    )
    assert gains == [None, {"tokensAStep": 3.5, "right": 0.625}, None, None, None, {"tokensAStep": 3, "right": 0.5}]


def test_a_chart_without_tokens_has_a_note(run: Run) -> None:
    """An empty chart has no figure, and activity just before the page was opened is not denied."""
    notes = run(
        "engine/spark.js",
        """
        const note = document.createElement("p");
        const spark = new m.Spark(document.createElementNS("http://www.w3.org/2000/svg", "svg"), note);
        const look = (t, tokens, requests) => {
            const latency = { batch: { requests, ttft_ms: [null, null], itl_ms: [null, null] } };
            spark.show({ t, tokens_per_s: tokens, prefill_tokens_per_s: 0, latency });
            return note.textContent;
        };
        return [look(1, 0, 0), look(2, 0, 1), look(3, 1234, 1), look(60, 0, 1), look(64, 0, 0)];""",
    )
    ran = "last minute, at most 1,234"
    idle = "no tokens in the last minute"
    assert notes == [idle, "no tokens since this page was opened", ran, ran, idle]


def test_any_typed_text_makes_a_valid_request(run: Run) -> None:
    """Half of a surrogate pair is replaced, and a fifth stop line is an error."""
    result = run(
        "sampling.js",
        """
        const conversation = { system: "a\\ud83d", sampling: {} };
        const request = m.requestFor(conversation, [{ role: "user", content: "b\\udc00 🦊" }], "x", "auto");
        const stop = m.FIELDS.find(({ list }) => list);
        return [request.messages, m.validationError(stop, "1\\n2\\n\\n3\\n4"), m.validationError(stop, "1\\n2\\n3\\n4\\n5")];""",
    )
    messages = [{"role": "system", "content": "a\ufffd"}, {"role": "user", "content": "b\ufffd 🦊"}]
    assert result == [messages, "", "At most 4 lines."]


def test_a_title_ends_with_a_whole_character(run: Run) -> None:
    title = run("title.js", "return m.titleFrom(arg);", "🦊" * 200)
    assert title == "🦊" * 159 + "…"


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_json_is_laid_out_in_pieces_as_it_is_whole(run: Run, size: int) -> None:
    """The printed pieces together equal the layout of JSON.stringify, and text that is not JSON stays as it is."""
    value = {"a": [], "b": {}, "c": [1, {"d": 'x"\\ {[,:'}, None], " é 🦊": True, "e": -1.5e3}
    shown = run(
        "print_json.js",
        """
        const printed = (text) => {
            const printer = new m.JsonPrinter(), letters = [...text];
            let out = "";
            for (let at = 0; at < letters.length; at += arg.size)
                out += printer.push(letters.slice(at, at + arg.size).join(""));
            return out;
        };
        return [printed(JSON.stringify(arg.value)), printed(JSON.stringify(arg.value, null, 7)),
            JSON.stringify(arg.value, null, 2), printed("not, {json}: x"), m.printJson("{not json"), m.printJson("7")];""",
        {"value": value, "size": size},
    )
    assert shown[0] == shown[1] == shown[2]
    assert shown[3:] == ["not, {json}: x", "{not json", "7"]


def test_unbalanced_json_is_printed_in_linear_size(run: Run) -> None:
    """Neither many opened nor many closed levels make the text larger than a line of limited indentation each."""
    lengths = run(
        "print_json.js", "return ['[', ']'].map((b) => new m.JsonPrinter().push('[' + b.repeat(9999)).length);"
    )
    assert all(length < 10_000 * 35 for length in lengths)


def test_calls_count_when_a_conversation_is_shortened(run: Run) -> None:
    """Without a token count, messages that have more than half of the characters, calls included, are left out."""
    first = run(
        "context.js",
        """
        const message = (id, role, content, calls) => ({ id, role, content, calls, created: 0 });
        const call = { id: "x", name: "find", arguments: "{}", result: "r".repeat(900) };
        const messages = [message("q1", "user", "a".repeat(100)), message("a1", "assistant", "b"),
            message("q2", "user", "c"), message("a2", "assistant", "", [call]), message("q3", "user", "d")];
        const fetch = window.fetch;
        window.fetch = () => Promise.reject(new TypeError("offline"));
        try { return await m.firstMessageThatFits({ system: "", sampling: {}, messages }, messages); }
        finally { window.fetch = fetch; }""",
    )
    assert first == "q3"


def test_an_answer_whose_first_response_is_lost_is_generated_once(run: Run) -> None:
    """The page sends the request again with its key, and reads the answer that the lost one had begun."""
    streams, ids, text = run(
        "stream.js",
        """
        const fetch = window.fetch, streams = [], ids = new Set();
        let text = "";
        window.fetch = async (...given) => {
            const response = await fetch(...given);
            streams.push(response.headers.get("x-carousel-stream"));
            if (streams.length > 1) return response;
            await response.body.cancel();
            throw new TypeError("the response was lost");
        };
        const body = { messages: [{ role: "user", content: "A fox" }], stream: true, temperature: 0, max_tokens: 8 };
        try {
            for await (const event of new m.Answer({ ...body, stream_options: { include_usage: true } }).events()) {
                if (event.kind === "open") ids.add(event.stream);
                if (event.kind === "delta") text += event.text;
            }
        } finally { window.fetch = fetch; }
        return [streams, [...ids], text];""",
    )
    assert len(streams) == 2
    assert ids == streams[:1]
    assert text
