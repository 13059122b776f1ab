"""From engine events to the records of a log: stop strings, and log-probabilities of the emitted text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.engine_client.client import EngineClient
from app.generation.choice import OutputOptions
from app.generation.generation import Generation
from app.generation.request import AnswerHead
from app.protocols.answers import UsageReports
from app.protocols.completions import CompletionEncoder
from app.streams.stream_log import Delta, Record, StreamLog, Usage
from app.streams.timeline import IntakeTimeline
from app.text.text_model import TextModel
from engine.config import EngineConfig
from engine.types import Alternative, EndEvent, FinishReason, Request, SamplingParams, TokenEvent
from tests.app.text_models import MODEL, PIECES


def answer(text: TextModel, ids: list[int], *, stop: tuple[str, ...] = (), min_tokens: int = 0) -> dict:
    """Return the choice of a completion that generates `ids`, each with a log-probability and no alternatives."""
    log = StreamLog("r", "e", "")
    encoder = CompletionEncoder(AnswerHead("m", "default", text, 1), UsageReports())
    sampling = SamplingParams(max_tokens=len(ids), min_tokens=min_tokens, logprobs=0)
    client = EngineClient(EngineConfig(model="none"))
    generation = Generation(
        Request(id="r", prompt=(1,), sampling=sampling),
        text,
        OutputOptions(stop),
        log,
        encoder,
        client,
        IntakeTimeline(0.0),
    )
    for at, token_id in enumerate(ids, start=1):
        finish = FinishReason.LENGTH if at == len(ids) else None
        generation.handle_event(TokenEvent("r", 0, token_id, finish, logprob=-1.0, top=(Alternative(token_id, -1.0),)))
    [choice] = encoder.body(log, 1)["choices"]
    # A stream has the same entries, in chunks that have their text already.
    streamed = [info.offset for record in log.records if isinstance(record, Delta) for info in record.infos]
    assert streamed == ((choice["logprobs"] or {}).get("text_offset") or [])
    return choice


@pytest.mark.parametrize(
    ("generated", "stop", "shown", "offsets"),
    [
        ("a dog and", ("dog",), "a ", [0, 1]),
        ("a dog and", (" dog",), "a", [0]),
        ("a dog and", ("a",), "", None),
        ("hello", ("llo",), "he", [0]),
        ("hello", ("ello",), "h", [0]),
        ("EENDx", ("END",), "E", [0]),
        ("é🎠 and", (" and",), "é🎠", [0, 0, 1, 1, 1]),
        ("é🎠 and", ("🎠",), "é", [0, 0]),
        ("a dog", ("cat",), "a dog", [0, 1, 2, 3, 4]),
    ],
)
def test_log_probabilities_end_with_the_text_that_a_stop_string_cuts(
    generated: str, stop: tuple[str, ...], shown: str, offsets: list[int] | None
):
    """Tokens without emitted text are dropped, and a token with partly emitted text stays."""
    choice = answer(MODEL, MODEL.encode(generated), stop=stop)
    assert choice["text"] == shown
    assert (choice["logprobs"] or {}).get("text_offset") == offsets


@given(st.text(alphabet="ab é", max_size=12), st.lists(st.text(alphabet="ab é", min_size=1, max_size=4), max_size=3))
def test_every_token_begins_in_the_text(generated: str, stops: list[str]):
    """With any stop strings, offsets ascend and none lies beyond the text; without a match no token is lost."""
    ids = MODEL.encode(generated) or MODEL.encode("a")
    choice = answer(MODEL, ids, stop=tuple(stops))
    offsets = (choice["logprobs"] or {"text_offset": []})["text_offset"]
    assert offsets == sorted(offsets) and all(offset <= len(choice["text"]) for offset in offsets)
    if choice["finish_reason"] == "stop":
        assert all(offset < len(choice["text"]) for offset in offsets)
    else:
        assert len(offsets) == len(ids)


@pytest.mark.parametrize(
    ("min_tokens", "stop", "shown"),
    [
        (0, (", 7,",), "1, 2, 6"),
        (10, (", 7,",), "1, 2, 6"),  # it begins before the tenth token and ends after it
        (11, (", 7,",), "1, 2, 6"),
        (12, (", 7,",), "1, 2, 6, 7, 8, 7"),  # the first occurrence ends too early; the end of the text is no match
        (8, (", 6", "2, 6, 7"), "1, "),
        (0, (", 6", "2, 6, 7"), "1, 2"),
    ],
)
def test_min_tokens_compares_with_the_end_of_a_stop_string(min_tokens: int, stop: tuple[str, ...], shown: str):
    """A match that begins before `min_tokens` and ends after it ends the text; one that ends before does not."""
    ids = MODEL.encode("1, 2, 6, 7, 8, 7")
    assert len(ids) == 16
    assert answer(MODEL, ids, stop=stop, min_tokens=min_tokens)["text"] == shown


def test_alternatives_with_the_same_text_keep_a_name_each():
    """The name is the text, the bytes in OpenAI's notation, or the id."""
    encoder = CompletionEncoder(AnswerHead("m", "default", PIECES, 1), UsageReports())
    ids = [PIECES.tokenizer.token_to_id(token) for token in ("s", "<0x73>", "<0xE3>", "<0x80>", "▁the")]
    all_ids = [*ids, *(PIECES.tokenizer.get_vocab_size() + i for i in (0, 1))]
    assert encoder._names(all_ids) == dict(
        zip(
            all_ids,
            ["s", r"bytes:\x73", r"bytes:\xe3", r"bytes:\x80", " the", "bytes:", f"token_id:{all_ids[-1]}"],
            strict=True,
        )
    )


def test_as_many_alternatives_are_named_as_requested():
    """The answer has five alternatives of incomplete bytes, and the token itself by the same name."""
    log = StreamLog("r", "e", "")
    encoder = CompletionEncoder(AnswerHead("m", "default", MODEL, 1), UsageReports())
    bytes_of = [MODEL.tokenizer.token_to_id(char) for char in "ðŁâãä"]
    top = tuple(Alternative(token_id, -1.0 - rank) for rank, token_id in enumerate(bytes_of))
    client = EngineClient(EngineConfig(model="none"))
    sampling = SamplingParams(max_tokens=1, logprobs=5)
    generation = Generation(
        Request(id="r", prompt=(1,), sampling=sampling),
        MODEL,
        OutputOptions(),
        log,
        encoder,
        client,
        IntakeTimeline(0.0),
    )
    generation.handle_event(TokenEvent("r", 0, bytes_of[2], FinishReason.LENGTH, logprob=-3.0, top=top))
    found = encoder.body(log, 1)["choices"][0]["logprobs"]
    assert found["tokens"] == [r"bytes:\xe2"]
    assert found["top_logprobs"] == [
        {rf"bytes:\x{byte}": -1.0 - rank for rank, byte in enumerate(("f0", "9f", "e2", "e3", "e4"))}
    ]


replayed = st.lists(
    st.tuples(st.integers(0, 2), st.sampled_from(["a", "b", " "]), st.sampled_from([None] * 9 + list(FinishReason))),
    max_size=40,
)


@given(replayed)
def test_a_replay_gives_the_records_that_were_sent(turns):
    """In any order of the choices, with their ends and errors, and with tokens that arrive after these."""

    def records(*, replays: bool) -> list[Record]:
        request = Request(id="r", prompt=(1,), sampling=SamplingParams(max_tokens=99), n=3)
        client, log = EngineClient(EngineConfig(model="none")), StreamLog("r", "e", "")
        generation = Generation(request, MODEL, OutputOptions(("bb",)), log, None, client, IntakeTimeline(0.0))
        ended: set[int] = set()
        for choice, text, finish in turns:
            if choice in ended:
                continue
            event: TokenEvent | EndEvent = TokenEvent("r", choice, MODEL.encode(text)[0], finish)
            if finish in (FinishReason.ABORT, FinishReason.ERROR):
                event = EndEvent("r", choice, finish, "not a number", "not_a_number")
            if finish is not None:
                ended.add(choice)
            if replays:
                generation.replay([event])
            else:
                generation.handle_event(event)
        return [record for record in log.records if not isinstance(record, Usage)]

    assert records(replays=True) == records(replays=False)
