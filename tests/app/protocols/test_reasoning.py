"""Reasoning of a chat answer: on the wire apart from the content, streamed and whole, in every protocol."""

from __future__ import annotations

import json

import pytest

from app.engine_client.client import EngineClient
from app.generation.choice import OutputOptions
from app.generation.generation import Generation
from app.generation.request import AnswerHead
from app.protocols.answers import UsageReports
from app.protocols.chat import ChatEncoder, ChatRequest
from app.protocols.realtime_output import ResponseOutput
from app.protocols.schema import validate
from app.streams.stream_log import Delta, LogEntry, StreamLog
from app.streams.timeline import IntakeTimeline
from app.text.chat_template import ChatTemplate
from app.text.output_parser import ThinkTagParser
from engine.config import EngineConfig
from engine.types import Alternative, FinishReason, Request, SamplingParams, TokenEvent
from tests.app.text_models import MODEL

TEXT = "<think>\nTwo é.</think>\n\nFour. END of it"


def generate(text: str = TEXT, *, stop: tuple[str, ...] = (), logprobs: int | None = None, is_cut: bool = False):
    """Return the finished log of a chat answer with `text`; with `is_cut`, one that is cancelled in the end."""
    ids = MODEL.encode(text)
    log = StreamLog("r", "e", "")
    request = Request(id="r", prompt=(1,), sampling=SamplingParams(max_tokens=len(ids), logprobs=logprobs))
    client = EngineClient(EngineConfig(model="none"))
    generation = Generation(
        request,
        MODEL,
        OutputOptions(stop),
        log,
        None,
        client,
        IntakeTimeline(0.0),
        parser=lambda name: ThinkTagParser(),
    )
    for at, token_id in enumerate(ids, start=1):
        finish = FinishReason.LENGTH if at == len(ids) and not is_cut else None
        top = () if logprobs is None else (Alternative(token_id, -1.0),)
        generation.handle_event(TokenEvent("r", 0, token_id, finish, None if logprobs is None else -1.0, top))
    generation.cancel()
    return log


def encoder() -> ChatEncoder:
    return ChatEncoder(AnswerHead("m", "default", MODEL, 1), UsageReports())


def chunks(log: StreamLog) -> list[dict]:
    """Return the deltas of a streamed answer."""
    data = encoder().for_reader(resumes=False).encode(log, [LogEntry(n, r) for n, r in enumerate(log.records, 1)])
    lines = [line.removeprefix("data: ") for line in data.decode().split("\n\n") if line]
    return [json.loads(line)["choices"][0] for line in lines if line != "[DONE]"]


def joined(deltas: list[dict], name: str) -> str:
    return "".join(choice["delta"].get(name, "") for choice in deltas)


@pytest.mark.parametrize(
    ("stop", "content", "reasoning"),
    [((), "Four. END of it", "Two é."), ((" END",), "Four.", "Two é."), (("é",), "", "Two ")],
)
def test_streamed_and_whole_answers_have_the_same_parts(stop: tuple[str, ...], content: str, reasoning: str):
    """Stop strings are found in both parts."""
    log = generate(stop=stop)
    message = encoder().body(log, 1)["choices"][0]["message"]
    assert (message["content"], message["reasoning_content"]) == (content, reasoning)
    deltas = chunks(log)
    assert (joined(deltas, "content"), joined(deltas, "reasoning_content")) == (content, reasoning)
    assert deltas[0]["delta"] == {"role": "assistant", "content": ""}


def test_an_answer_without_reasoning_has_no_such_field():
    """Clients that do not know it receive exactly the protocol's fields."""
    log = generate("Four.")
    assert encoder().body(log, 1)["choices"][0]["message"] == {"role": "assistant", "content": "Four.", "refusal": None}
    assert all("reasoning_content" not in choice["delta"] for choice in chunks(log))


def test_an_answer_sent_back_as_history_reaches_the_template_with_its_reasoning():
    """Clients append the whole message of an answer to the conversation."""
    answer = encoder().body(generate(), 1)["choices"][0]["message"]
    request = validate(ChatRequest, {"messages": [{"role": "user", "content": "2 + 2?"}, answer]})
    template = ChatTemplate("{% for m in messages %}{{ m.reasoning_content | default('-') }},{% endfor %}", {})
    assert template.render(request.prompt.turns) == "-,Two é.,"


def test_every_token_is_counted_and_has_its_log_probability():
    """Tokens of tags are counted with the piece that follows them."""
    log = generate(logprobs=0)
    deltas = [record for record in log.records if isinstance(record, Delta)]
    ids = MODEL.encode(TEXT)
    assert sum(delta.tokens for delta in deltas) == len(ids)
    assert [info.token_id for delta in deltas for info in delta.infos] == ids


@pytest.mark.parametrize(
    ("text", "parts"),
    [("<think>Hm </thi", ("", "Hm </thi")), ("<thi", ("<thi", "")), ("<think>a</think>b EN", ("b EN", "a"))],
)
def test_a_cancelled_answer_keeps_text_that_was_held_back(text: str, parts: tuple[str, str]):
    """It may have been the beginning of a tag or of a stop string."""
    message = encoder().body(generate(text, stop=("END",), is_cut=True), 1)["choices"][0]["message"]
    assert (message["content"], message.get("reasoning_content", "")) == parts


def test_a_realtime_response_sends_reasoning_as_its_own_event():
    """The item's text, which is read aloud and stays in the conversation, has none."""
    log = generate()
    output = ResponseOutput("resp_1", None, lambda: "e")
    items = [LogEntry(n, record) for n, record in enumerate(log.records, 1)]
    events = [json.loads(message) for message in output.encode(log, items)]
    deltas = [e for e in events if "delta" in e]
    texts = {kind: "".join(e["delta"] for e in deltas if e["type"] == kind) for kind in {e["type"] for e in deltas}}
    assert len({e["item_id"] for e in deltas}) == 1
    assert texts == {"carousel.reasoning.delta": "Two é.", "response.output_text.delta": "Four. END of it"}
    assert output.items[0].text == "Four. END of it"
