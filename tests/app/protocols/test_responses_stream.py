"""Events and bodies of `/v1/responses`, from logs with records made by hand."""

from __future__ import annotations

import json
from typing import Any

import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from app.errors import ApiError
from app.generation.request import AnswerHead
from app.protocols.responses import ResponsesRequest
from app.protocols.responses_encoder import CHECKPOINT_RECORDS, ResponsesEncoder
from app.protocols.responses_output import MAX_REPEATED_LOGPROBS
from app.protocols.schema import validate
from app.streams.stream_log import (
    ChoiceFinished,
    ChoiceStarted,
    Delta,
    Failure,
    LogEntry,
    Record,
    StreamLog,
    TokenInfo,
    ToolCallPiece,
    Usage,
)
from engine.types import Alternative, Phase, StatusEvent
from tests.app.text_models import MODEL

EVENT = TypeAdapter(ResponseStreamEvent)
STARTED = ChoiceStarted(0)
STOPPED = (ChoiceFinished(0, "stop"), Usage(5, 7, 3, {"decode": 1.0}, 2))
WEATHER = {"type": "function", "name": "weather", "parameters": {"type": "object"}}


def text(content: str, **fields) -> Delta:
    return Delta(0, content, 1, **fields)


def reasoning(content: str) -> Delta:
    return Delta(0, "", 1, reasoning=content)


def call(index: int, arguments: str, **fields) -> Delta:
    return Delta(0, "", 1, calls=(ToolCallPiece(index, arguments, **fields),))


ALL_KINDS = (
    STARTED,
    reasoning("Hm"),
    Delta(0, "Let me", 1, reasoning="m."),
    text(" see."),
    call(0, "", id="call_a", name="weather"),
    call(0, '{"city"'),
    call(0, ': "Ulm"}'),
    call(1, "{}", id="call_b", name="weather"),
    text("Done."),
    *STOPPED,
)


def filled(*records: Record) -> StreamLog:
    log = StreamLog("a1", "e", "")
    for record in records:
        log.append(record)
    return log


def encoder(**fields) -> ResponsesEncoder:
    request = validate(ResponsesRequest, {"input": "hi", "stream": True, **fields}).generation_request()
    made = request.encoder(AnswerHead("m", "default", MODEL, 5, 40))
    assert isinstance(made, ResponsesEncoder)
    return made


def blocks(encoder: ResponsesEncoder, log: StreamLog) -> list[bytes]:
    """Return the blocks of a stream, read record by record."""
    sent = encoder.opening(log)
    for seq, record in enumerate(log.records, 1):
        sent += encoder.encode(log, [LogEntry(seq, record)])
    return sent.split(b"\n\n")[:-1]


def events(log: StreamLog, **fields) -> list[dict[str, Any]]:
    """Return the events of a stream, after checking the rules that hold for all streams."""
    found = []
    for number, block in enumerate(blocks(encoder(**fields).for_reader(resumes=False), log)):
        kind, data = block.decode().split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert kind == f"event: {event['type']}" and event["sequence_number"] == number
        EVENT.validate_python(event, strict=True)
        found.append(event)
    return found


def kinds(found: list[dict]) -> list[str]:
    return [event["type"].removeprefix("response.") for event in found]


def joined(found: list[dict], kind: str, index: int) -> str:
    return "".join(e["delta"] for e in found if e["type"] == f"response.{kind}.delta" and e["output_index"] == index)


def test_the_events_of_a_text_are_those_of_the_protocol():
    """Each has its number and, in its own line, its type."""
    found = events(filled(STARTED, text("He"), text("llo"), *STOPPED))
    added = ["created", "in_progress", "output_item.added", "content_part.added"]
    done = ["output_text.done", "content_part.done", "output_item.done", "completed"]
    assert kinds(found) == [*added, "output_text.delta", "output_text.delta", *done]
    assert found[2]["item"] == {
        "id": "msg_a1_0",
        "type": "message",
        "status": "in_progress",
        "role": "assistant",
        "content": [],
    }
    place = {"item_id": "msg_a1_0", "output_index": 0, "content_index": 0}
    assert found[4] == {
        "type": "response.output_text.delta",
        "sequence_number": 4,
        **place,
        "delta": "He",
        "logprobs": [],
    }
    part = {"type": "output_text", "text": "Hello", "annotations": [], "logprobs": []}
    assert found[6] | place == found[6] and found[6]["text"] == "Hello"
    assert found[7]["part"] == part
    assert found[8]["item"]["content"] == [part] and found[8]["item"]["status"] == "completed"
    final = found[-1]["response"]
    assert final["output"] == [found[8]["item"]] and final["status"] == "completed"
    assert found[0]["response"]["status"] == "in_progress" and found[0]["response"]["usage"] is None


def test_reasoning_text_and_calls_are_items_in_the_order_of_generation():
    """An item ends where another one begins, and a text after a call is a message of its own."""
    found = events(filled(*ALL_KINDS), tools=[WEATHER])
    output = found[-1]["response"]["output"]
    assert [item["type"] for item in output] == ["reasoning", "message", "function_call", "function_call", "message"]
    assert [item["id"] for item in output] == ["rs_a1_0", "msg_a1_1", "fc_a1_2", "fc_a1_3", "msg_a1_4"]
    assert {item["status"] for item in output} == {"completed"}
    assert output[0]["content"] == [{"type": "reasoning_text", "text": "Hmm."}] and output[0]["summary"] == []
    assert output[1]["content"][0]["text"] == "Let me see." and output[4]["content"][0]["text"] == "Done."
    expected = {"call_id": "call_a", "name": "weather", "arguments": '{"city": "Ulm"}'}
    assert output[2] | expected == output[2] and output[3]["arguments"] == "{}"
    assert joined(found, "reasoning_text", 0) == "Hmm." and joined(found, "output_text", 1) == "Let me see."
    assert joined(found, "function_call_arguments", 2) == expected["arguments"]
    assert all(event["delta"] for event in found if event["type"].endswith(".delta"))
    added = [event["item"]["id"] for event in found if event["type"] == "response.output_item.added"]
    done = [event["item"] for event in found if event["type"] == "response.output_item.done"]
    assert added == [item["id"] for item in output] and done == output
    finished = [e["arguments"] for e in found if e["type"] == "response.function_call_arguments.done"]
    assert finished == [expected["arguments"], "{}"]


def test_a_whole_response_equals_that_of_the_last_event():
    """It has every field of the type in OpenAI's library."""
    fields = {"instructions": "i", "tools": [WEATHER], "metadata": {"a": "b"}, "user": "u", "max_output_tokens": 99}
    log = filled(*ALL_KINDS)
    body = encoder(**fields).body(log, 1)
    assert body == events(log, **fields)[-1]["response"]
    response = Response.model_validate(body, strict=True)
    assert response.id == "resp_a1" and response.model == "m" and response.service_tier == "default"
    assert response.instructions == "i" and response.user == "u" and response.metadata == {"a": "b"}
    assert response.max_output_tokens == 40, "the effective limit"
    assert (response.store, response.background, response.previous_response_id) == (True, False, None)
    assert (response.temperature, response.top_p, response.truncation) == (1.0, 1.0, "disabled")
    assert response.tools[0].name == "weather" and response.tool_choice == "auto"
    assert response.usage.input_tokens == 5 and response.usage.input_tokens_details.cached_tokens == 3
    assert response.usage.output_tokens == 7 and response.usage.output_tokens_details.reasoning_tokens == 2
    assert response.usage.total_tokens == 12
    assert response.completed_at >= response.created_at
    assert not Response.model_fields.keys() - body.keys() - OPTIONAL


def test_a_response_has_the_fields_that_open_responses_requires_beside_those():
    """The Open Responses specification has both penalties of its `ResponseResource` as required numbers."""
    body = encoder(presence_penalty=0.5).body(filled(*ALL_KINDS), 1)
    assert (body["presence_penalty"], body["frequency_penalty"]) == (0.5, 0.0)


# Fields of services that this server does not have.
OPTIONAL = {
    "access_programs",
    "conversation",
    "image",
    "input_transformations",
    "moderation",
    "prompt",
    "prompt_cache_diagnostics",
    "prompt_cache_options",
    "prompt_cache_retention",
    "tool_usage",
}


def test_a_call_in_a_namespace_has_both_names():
    """The client finds its function by them, and the tools are repeated as they were given."""
    tools = [{"type": "namespace", "name": "home", "description": "d", "tools": [WEATHER]}, WEATHER]
    tools += [{"type": "web_search", "external_web_access": False}]
    log = filled(STARTED, call(0, "{}", id="a", name="home__weather"), call(1, "{}", id="b", name="weather"), *STOPPED)
    found = events(log, tools=tools)
    response = Response.model_validate(found[-1]["response"], strict=True)
    assert [(item.namespace, item.name) for item in response.output] == [("home", "weather"), (None, "weather")]
    assert [tool.type for tool in response.tools] == ["namespace", "function"]
    assert response.tools[0].tools[0].name == "weather" and "namespace" not in found[-1]["response"]["output"][1]
    done = [event["name"] for event in found if event["type"] == "response.function_call_arguments.done"]
    assert done == ["weather", "weather"]
    again = validate(ResponsesRequest, {"input": found[-1]["response"]["output"], "tools": tools}).chat_prompt.turns
    assert [entry["function"]["name"] for entry in again[0]["tool_calls"]] == ["home__weather", "weather"]


def test_choices_and_formats_are_repeated_as_the_library_reads_them():
    """Each variant of the fields that have several types is valid."""
    form = {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True}
    allowed = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "weather"}]}
    hosted = {**allowed, "tools": [*allowed["tools"], {"type": "web_search_preview"}]}
    for choice in ("none", {"type": "function", "name": "weather"}, allowed, hosted):
        fields = {"tools": [WEATHER], "tool_choice": choice, "text": {"format": form}, "reasoning": {"effort": "low"}}
        response = Response.model_validate(encoder(**fields).body(filled(STARTED, *STOPPED), 1), strict=True)
        repeated = response.tool_choice if isinstance(choice, str) else response.tool_choice.to_dict()
        assert repeated == choice
        assert response.text.format.schema_ == {"type": "object"} and response.reasoning.effort == "low"


@pytest.mark.parametrize(
    ("reason", "last", "status", "item_status", "details"),
    [
        ("stop", "completed", "completed", "completed", None),
        ("tool_calls", "completed", "completed", "completed", None),
        ("length", "incomplete", "incomplete", "incomplete", {"reason": "max_output_tokens"}),
        ("abort", "incomplete", "cancelled", "incomplete", None),
    ],
)
def test_an_end_has_its_status(reason: str, last: str, status: str, item_status: str, details):
    """The item that was cut has a status too; the time of completion is only that of a complete response."""
    found = events(filled(STARTED, text("a"), ChoiceFinished(0, reason), Usage(5, 1, 0)))
    response = found[-1]["response"]
    assert kinds(found)[-1] == last and response["status"] == status
    assert response["output"][0]["status"] == item_status and response["incomplete_details"] == details
    assert (response["completed_at"] is None) == (status != "completed")


def test_an_answer_without_text_has_an_empty_message():
    """Clients read the first item; a response that was cancelled before its first token has none."""
    output = events(filled(STARTED, *STOPPED))[-1]["response"]["output"]
    assert [part["text"] for part in output[0]["content"]] == [""]
    assert events(filled(STARTED, ChoiceFinished(0, "abort"), Usage(5, 0, 0)))[-1]["response"]["output"] == []


@pytest.mark.parametrize(
    "records", [(), (STARTED, reasoning("Hm"), text("a")), (STARTED, call(0, "{", id="c", name="f"))]
)
def test_a_failure_is_an_error_event_and_a_failed_response(records: tuple[Record, ...]):
    """The response has the output until then, and a code of those that clients know."""
    log = filled(*records, Failure("It broke.", "engine_died", None))
    found = events(log)
    assert kinds(found)[-2:] == ["error", "failed"]
    assert found[-2] == {
        "type": "error",
        "sequence_number": len(found) - 2,
        "code": "engine_died",
        "message": "It broke.",
        "param": None,
    }
    response = found[-1]["response"]
    assert response["status"] == "failed" and response["usage"] is None
    expected = {"code": "server_error", "message": "It broke.", "param": None, "type": "engine_died"}
    assert response["error"] == expected
    assert [item["status"] for item in response["output"]][-1:] == ["incomplete"] * bool(records)
    with pytest.raises(ApiError, match="It broke") as refused:
        encoder().body(log, 1)
    assert refused.value.status == 500 and refused.value.headers == {"X-Should-Retry": "false"}
    assert encoder().response(log) == response


def test_a_response_in_progress_can_be_read():
    """It is queued until its first token, and its last item is in progress."""
    log = StreamLog("a1", "e", "")
    assert encoder().response(log)["status"] == "queued"
    for record in (STARTED, reasoning("Hm"), text("a")):
        log.append(record)
    response = Response.model_validate(encoder().response(log), strict=True)
    assert response.status == "in_progress"
    assert [(item.type, item.status) for item in response.output] == [
        ("reasoning", "completed"),
        ("message", "in_progress"),
    ]
    assert response.output_text == "a"


def info(token_id: int) -> TokenInfo:
    return TokenInfo(token_id, -0.5, (Alternative(token_id, -0.5), Alternative(66, -1.0)), 0)


def test_log_probabilities_are_those_of_the_message():
    """They come with the deltas and again at the end. Those of reasoning and calls have no place in the protocol."""
    records = (
        STARTED,
        Delta(0, "", 1, (info(70),), "Hm"),
        Delta(0, "", 1, (info(71),)),
        Delta(0, "a", 1, (info(72),)),
        Delta(0, "", 1, (info(73),)),
        Delta(0, "", 1, (info(74),), calls=(ToolCallPiece(0, "{}", "c", "f"),)),
        *STOPPED,
    )
    found = events(filled(*records), top_logprobs=2)
    deltas = [e["logprobs"] for e in found if e["type"] == "response.output_text.delta"]
    names = [MODEL.decode([token]) for token in (72, 73)]
    assert [entry["token"] for entries in deltas for entry in entries] == names
    assert deltas[0][0]["top_logprobs"][1]["logprob"] == -1.0 and deltas[0][0]["bytes"] == list(names[0].encode())
    for kind in ("response.output_text.done", "response.content_part.done"):
        event = next(e for e in found if e["type"] == kind and "reasoning" not in str(e))
        assert (event.get("logprobs") or event["part"]["logprobs"]) == [*deltas[0], *deltas[1]]
    assert found[-1]["response"]["output"][1]["content"][0]["logprobs"] == [*deltas[0], *deltas[1]]
    assert found[-1]["response"]["top_logprobs"] == 2


@pytest.mark.parametrize("infos", [0, 1, 2])
def test_many_log_probabilities_are_not_repeated_in_a_stream(infos: int):
    """To encode them again would hold up other requests. A whole response has them, since it is encoded in a thread."""
    count = MAX_REPEATED_LOGPROBS // infos // 3 + 1 if infos else MAX_REPEATED_LOGPROBS
    records = [Delta(0, "a", 1, (info(72),) * infos) for _ in range(count)]
    log = filled(STARTED, Delta(0, "a", 1, (info(72),)), *records, *STOPPED)
    found = events(log, top_logprobs=2)
    assert sum(len(e["logprobs"]) for e in found if e["type"] == "response.output_text.delta") == 1 + infos * count
    assert found[-1]["response"]["output"][0]["content"][0]["logprobs"] == []
    whole = encoder(top_logprobs=2).body(log, 1)["output"][0]["content"][0]["logprobs"]
    assert len(whole) == 1 + infos * count


def test_output_items_are_valid_input():
    """Clients append the output of a response to their next input, as it came or with the nulls of a library."""
    body = encoder(tools=[WEATHER]).body(filled(*ALL_KINDS), 1)
    results = [{"type": "function_call_output", "call_id": name, "output": "ok"} for name in ("call_a", "call_b")]
    dumped = [item.model_dump() for item in Response.model_validate(body).output]
    for output in (body["output"], dumped):
        assistant, *tools = validate(ResponsesRequest, {"input": [*output, *results]}).chat_prompt.turns
        assert assistant["content"] == "Let me see.\n\nDone." and assistant["reasoning_content"] == "Hmm."
        assert [entry["id"] for entry in assistant["tool_calls"]] == ["call_a", "call_b"]
        assert [turn["tool_call_id"] for turn in tools] == ["call_a", "call_b"]


async def resumed(made: ResponsesEncoder, log: StreamLog, after: int) -> list[bytes]:
    """Return the blocks that a reader receives that has the events up to number `after`."""
    found = await made.resume(log, after)
    if found is None:
        return []
    reader, records = found
    sent = reader.opening(log) if not records else b""
    items = [LogEntry(seq, record) for seq, record in enumerate(log.records[records:], records + 1)]
    sent += b"".join(reader.encode(log, items[at : at + 64]) for at in range(0, len(items), 64))
    return sent.split(b"\n\n")[:-1]


async def test_a_reader_may_resume_after_any_event():
    """It receives the same bytes as the first reader, also from an encoder that has not read the log before."""
    log = filled(*ALL_KINDS)
    made = encoder(tools=[WEATHER])
    first = blocks(made, log)
    for after in range(-1, len(first)):
        assert await resumed(made, log, after) == first[after + 1 :]
        assert await resumed(encoder(tools=[WEATHER]), log, after) == first[after + 1 :]
    with pytest.raises(ApiError, match=f"less than {len(first)}") as refused:
        await made.resume(log, len(first))
    assert (refused.value.status, refused.value.param) == (400, "starting_after")


async def test_a_reader_of_a_long_answer_resumes_from_a_checkpoint():
    """Only the records since then are read again, whether or not another reader was there before."""
    count = 3 * CHECKPOINT_RECORDS
    deltas = [reasoning("a") if at < count // 2 else text("bc") for at in range(count)]
    log = filled(STARTED, *deltas, *STOPPED)
    made = encoder()
    first = blocks(made, log)
    assert len(made._checkpoints) == 3
    assert all(len(kept._item.pieces) <= 3 for kept in made._checkpoints), "they share joined text"
    for after in (count - 5, 10, CHECKPOINT_RECORDS + 1, CHECKPOINT_RECORDS + 2, len(first) - 2):
        for other in (made, encoder()):
            _, records = await other.resume(log, after)
            assert after - records < CHECKPOINT_RECORDS + 20
            assert await resumed(other, log, after) == first[after + 1 :]
    output = json.loads(first[-1].split(b"data: ")[1])["response"]["output"]
    assert [item["content"][0]["text"] for item in output] == ["a" * (count // 2), "bc" * (count // 2)]


@pytest.mark.parametrize("left", [0, 1, 2])
async def test_a_checkpoint_may_be_anywhere_in_the_log(left: int):
    """`left` records follow it: the end of the choice and of the request, that of the request, or none."""
    deltas = [text("a") for _ in range(CHECKPOINT_RECORDS - 3 + left)]
    log = filled(STARTED, *deltas, ChoiceFinished(0, "length"), Usage(5, 7, 3))
    made = encoder()
    first = blocks(made, log)
    assert len(log.records) == CHECKPOINT_RECORDS + left
    for after in range(len(first) - 8, len(first) - 1):
        assert await resumed(made, log, after) == first[after + 1 :]
    assert await made.resume(log, len(first) - 1) is None


async def test_readers_at_the_same_record_do_not_disturb_each_other():
    """Each has its own position."""
    log = filled(STARTED, *[text("a") for _ in range(CHECKPOINT_RECORDS + 5)], *STOPPED)
    items = [LogEntry(seq, record) for seq, record in enumerate(log.records, 1)]
    made = encoder()
    sent = made.opening(log) + made.encode(log, items[:CHECKPOINT_RECORDS])
    number = sent.count(b"\n\n") - 1
    reader, records = await made.resume(log, number + 2)
    assert records == CHECKPOINT_RECORDS
    late, rest = reader.encode(log, items[records:]), made.encode(log, items[CHECKPOINT_RECORDS:])
    assert late.split(b"\n\n") == rest.split(b"\n\n")[2:]


def test_only_readers_that_may_resume_receive_the_status():
    """It is a comment, as in other protocols."""
    log = filled(STARTED)
    status = StatusEvent("a1", 0, Phase.QUEUED, position=2)
    assert encoder().encode(log, [status]).startswith(b": carousel {")
    assert encoder().for_reader(resumes=False).encode(log, [status]) == b""


async def test_a_record_read_out_of_order_gives_the_same_bytes():
    """The encoder of a stream has no position that readers could disturb."""
    log = filled(*ALL_KINDS)
    made = encoder(tools=[WEATHER])
    pieces = [made.encode(log, [LogEntry(seq, record)]) for seq, record in enumerate(log.records, 1)]
    for seq in (9, 3, 4, 11, 1):
        assert made.encode(log, [LogEntry(seq, log.records[seq - 1])]) == pieces[seq - 1]
