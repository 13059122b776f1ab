"""Events of a realtime response, from the records of its log."""

from __future__ import annotations

import json
from itertools import count

import pytest
from openai.types.realtime import RealtimeServerEvent
from pydantic import TypeAdapter

from app.protocols.conversation import Conversation
from app.protocols.realtime_items import ConversationItem
from app.protocols.realtime_output import MAX_OUTPUT_ITEMS, ResponseOutput
from app.streams.stream_log import (
    ChoiceFinished,
    ChoiceStarted,
    Delta,
    Failure,
    LogEntry,
    Record,
    StreamLog,
    ToolCallPiece,
    Usage,
)

EVENT = TypeAdapter(RealtimeServerEvent)
CALLS = (
    Delta(0, "", 1, calls=(ToolCallPiece(0, '{"city"', "call_1", "get_weather"),)),
    Delta(0, "", 1, calls=(ToolCallPiece(0, ': "Rome"}'), ToolCallPiece(1, "", "call_2", "get_time"))),
    Delta(0, "", 1, calls=(ToolCallPiece(1, "{}"),)),
)
END = (ChoiceFinished(0, "tool_calls"), Usage(3, 4, 0))


def events(output: ResponseOutput, *records: Record) -> list[dict]:
    """Return the events of records, which OpenAI's library accepts."""
    items = [LogEntry(number, record) for number, record in enumerate(records, 1)]
    found = [json.loads(message) for message in output.encode(StreamLog("s", "e", ""), items)]
    for event in found:
        if not event["type"].startswith("carousel."):
            EVENT.validate_python(event, strict=True)
    return found


def new(conversation: Conversation | None = None, **fields) -> ResponseOutput:
    numbers = count()
    return ResponseOutput("resp_1", conversation, lambda: f"event_{next(numbers)}", **fields)


def kinds(found: list[dict]) -> list[str]:
    return [event["type"].removeprefix("response.").removeprefix("conversation.") for event in found]


def test_calls_are_items_of_their_own_after_the_text():
    """Each begins when the one before it is complete, and has its own index."""
    conversation = Conversation()
    output = new(conversation)
    found = events(output, ChoiceStarted(0), Delta(0, "I look.", 2), *CALLS, *END)
    message = ["output_item.added", "item.added", "content_part.added", "output_text.delta", "output_text.done"]
    call = ["output_item.added", "item.added", "function_call_arguments.delta", "function_call_arguments.delta"]
    done = ["output_item.done", "item.done"]
    arguments = "function_call_arguments.done"
    first, second = [*call, arguments, *done], [*call[:3], arguments, *done]
    assert kinds(found) == [*message, "content_part.done", *done, *first, *second]
    assert [event["output_index"] for event in found if event["type"] == "response.output_item.added"] == [0, 1, 2]
    assert [(item.name, item.text, item.status) for item in conversation] == [
        ("", "I look.", "completed"),
        ("get_weather", '{"city": "Rome"}', "completed"),
        ("get_time", "{}", "completed"),
    ]
    arguments_of = {event["call_id"]: event["arguments"] for event in found if event["type"].endswith("arguments.done")}
    assert arguments_of == {"call_1": '{"city": "Rome"}', "call_2": "{}"}


def test_an_answer_of_calls_alone_has_no_message():
    """Clients would show, and send to the speaker, an empty one."""
    assert [event["item"]["type"] for event in events(new(), *CALLS, *END) if event["type"].endswith("item.added")] == [
        "function_call",
        "function_call",
    ]


@pytest.mark.parametrize(("reason", "items"), [("stop", 1), ("length", 1), ("abort", 0)])
def test_an_answer_without_text_has_a_message_unless_it_was_cancelled(reason: str, items: int):
    """Clients expect an item in a complete answer."""
    output = new()
    events(output, ChoiceFinished(0, reason), Usage(1, 0, 0))
    assert len(output.items) == items


@pytest.mark.parametrize("ending", [(ChoiceFinished(0, "abort"), Usage(1, 2, 0)), (Failure("It failed.", "x", None),)])
def test_a_call_that_was_cut_is_incomplete(ending: tuple[Record, ...]):
    """Clients run calls that are complete."""
    output = new()
    found = events(output, CALLS[0], *ending)
    assert found[-1]["item"]["status"] == output.items[0].status == "incomplete"
    assert found[-1]["item"]["arguments"] == '{"city"'


def test_items_follow_those_that_they_answer():
    """Also if the client adds others meanwhile; if it deletes them, they are the last ones."""
    conversation = Conversation()
    conversation.create(ConversationItem("question", text="?", role="user"))
    output, other = new(conversation), new(conversation)
    conversation.create(ConversationItem("next", text="?", role="user"))
    events(output, Delta(0, "a", 1), *END)
    conversation.delete("question")
    events(other, Delta(0, "b", 1), *END)
    assert [item.text if item.role == "assistant" else item.id for item in conversation] == ["a", "next", "b"]


def test_an_answer_with_too_many_calls_is_cut_once():
    """A conversation takes no more items of one answer than its limit."""
    called: list[int] = []
    conversation = Conversation()
    output = new(conversation, on_full=lambda: called.append(1))
    many = [Delta(0, "", 1, calls=(ToolCallPiece(n, "{}", f"call_{n}", "f"),)) for n in range(MAX_OUTPUT_ITEMS + 5)]
    found = events(output, *many, Failure("Too many.", "too_many_items", None))
    assert called == [1] and len(output.items) == len(conversation) == MAX_OUTPUT_ITEMS
    assert found[-1]["item"]["status"] == "completed"


def test_a_restarted_output_has_the_same_events_and_places():
    """An item that the client has deleted is not placed again."""
    conversation = Conversation()
    conversation.create(ConversationItem("question", text="?", role="user"))
    output = new(conversation)
    first = events(output, Delta(0, "I look.", 1), *CALLS, *END)
    conversation.create(ConversationItem("next", text="?", role="user"), output.items[-1].id)
    conversation.delete(output.items[0].id)
    output.restart()
    assert [item.id for item in conversation] == ["question", "next"] and not output.items
    again = events(output, Delta(0, "I look.", 1), *CALLS, *END)
    assert [item.id for item in conversation] == ["question", *(item.id for item in output.items[1:]), "next"]
    names = ("type", "item_id", "output_index", "delta", "arguments")
    of_responses = [
        [[event.get(name) for name in names] for event in found if event["type"].startswith("response.")]
        for found in (first, again)
    ]
    assert of_responses[0] == of_responses[1]


def test_a_guessed_id_does_not_replace_an_item_of_the_client():
    """The ids of an answer's items can be guessed from the first one."""
    conversation = Conversation()
    output = new(conversation)
    events(output, Delta(0, "a", 1))
    guessed = output.items[0].id[:-1] + "1"
    conversation.create(ConversationItem(guessed, text="mine", role="user"))
    found = events(output, *CALLS[:1], *END)
    assert next(item for item in conversation if item.id == guessed).text == "mine"
    assert kinds(found)[-1] == "output_item.done"
