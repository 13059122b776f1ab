"""Random events of a client and of the engine against a realtime session.

It loses its connection and its process at any time.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from app.admission.tenants import tenant_of_key
from app.protocols.realtime_saved import RealtimeRequest
from app.routes.frame_pace import MAX_BURST
from app.routes.realtime_restore import restored_session
from app.routes.realtime_session import Session
from app.store.state_file import StateFile
from app.streams.stream_log import ChoiceFinished, Delta, Failure, ToolCallPiece, Usage
from tests.fakes import FakeService
from tests.limits import HANG_SECONDS
from tests.profiles import examples

IDS = [f"i{number}" for number in range(6)]
ACKNOWLEDGED = {
    "session.update": "session.updated",
    "conversation.item.create": "conversation.item.added",
    "conversation.item.retrieve": "conversation.item.retrieved",
    "conversation.item.truncate": "conversation.item.truncated",
    "conversation.item.delete": "conversation.item.deleted",
    "response.create": "response.created",
}


class RealtimeClient:
    """Client that keeps what it has received as a client should: items in order, and responses by id."""

    def __init__(self) -> None:
        self.items: list[str] = []
        self.texts: dict[str, str] = {}  # by item id, from deltas
        self.running: dict[str, bool] = {}  # whether the response has written to the conversation
        self.ended: set[str] = set()
        self.received: list[dict[str, Any]] = []
        self.has_room = True
        self.is_connected = True
        self.writing: Callable[[], str | None] = lambda: None  # returns the response that the conversation waits for

    def write(self, messages: list[bytes]) -> bool:
        """Accept messages if there is room."""
        if not (self.has_room and self.is_connected):
            return False
        for message in messages:
            self.handle(json.loads(message))
        return True

    async def send(self, message: bytes) -> None:
        """Accept a message once there is room."""
        while not self.has_room:
            await asyncio.sleep(0)
        assert self.is_connected
        self.handle(json.loads(message))

    def handle(self, event: dict[str, Any]) -> None:
        """Update the state by one event, and check that it fits."""
        self.received.append(event)
        match event["type"]:
            case "session.created":
                self.items, self.texts, self.running = [], {}, {}
            case "conversation.item.added":
                previous = event["previous_item_id"]
                assert event["item"]["id"] not in self.items
                self.items.insert(0 if previous is None else self.items.index(previous) + 1, event["item"]["id"])
            case "conversation.item.deleted":
                self.items.remove(event["item_id"])
            case "response.created":
                assert event["response"]["id"] not in self.running
                assert event["response"]["id"] not in self.ended
                self.running[event["response"]["id"]] = False
            case "response.output_item.added":
                assert event["response_id"] in self.running
                self.texts[event["item"]["id"]] = ""
            case "response.output_text.delta" | "response.function_call_arguments.delta":
                self.texts[event["item_id"]] += event["delta"]
            case "response.output_text.done":
                assert event["text"] == self.texts[event["item_id"]]
            case "response.function_call_arguments.done":
                assert event["arguments"] == self.texts[event["item_id"]]
            case "response.done":
                assert self.writing() != event["response"]["id"]  # the next one can be asked for at once
                del self.running[event["response"]["id"]]
                self.ended.add(event["response"]["id"])


def message(role: str) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": [{"type": "input_text", "text": "hi"}]}


ITEMS = st.sampled_from(
    [
        message("user"),
        message("assistant"),
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "1"},
        {"type": "nonsense"},
    ]
)
TOOLS = [
    {"type": "function", "name": "f", "description": "d", "parameters": {"type": "object"}, "strict": None},
    {"type": "mcp", "server_label": "s", "server_url": "u"},
]
CHOICE = {"type": "function", "name": "f"}
ID = st.sampled_from(IDS)
CLIENT_EVENTS = st.one_of(
    st.sampled_from(
        [{"temperature": 1}, {"voice": "a", "b": 1}, {"tools": []}, {"tools": TOOLS, "tool_choice": CHOICE}, 3]
    ).map(lambda session: {"type": "session.update", "session": session}),
    st.builds(
        lambda item, item_id, previous: {
            "type": "conversation.item.create",
            "item": item | {"id": item_id},
            "previous_item_id": previous,
        },
        ITEMS,
        ID,
        st.sampled_from([None, None, "root", *IDS]),
    ),
    st.builds(lambda verb, i: {"type": f"conversation.item.{verb}", "item_id": i}, st.just("retrieve"), ID),
    ID.map(lambda i: {"type": "conversation.item.truncate", "item_id": i, "content_index": 0, "audio_end_ms": 5}),
    ID.map(lambda i: {"type": "conversation.item.delete", "item_id": i}),
    st.sampled_from(
        [
            {},
            {},
            {"conversation": "none", "metadata": {"topic": "t"}},
            {"conversation": "none", "input": [{"type": "item_reference", "id": "i0"}, message("user")]},
        ]
    ).map(lambda response: {"type": "response.create", "response": response}),
    st.just({"type": "response.cancel"}),
    st.just({"type": "nonsense"}),
)
RECORDS = st.sampled_from(["text", "text", "reasoning", "call", "call", "piece", "status", "end", "end", "fail"])
ACTIONS = st.one_of(
    CLIENT_EVENTS,
    CLIENT_EVENTS,
    st.tuples(st.integers(0, 9), RECORDS),
    st.sampled_from(["stall", "drain", "sleep", "lose", "kill", "delete an answer"]),
)


class Run:
    """One session, its client and its engine."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file = StateFile(path)
        self.file.writer.start()
        self.service = FakeService()
        self.client = RealtimeClient()
        self.tenant = tenant_of_key("anna")
        self.service.settings.tenants_by_digest = {self.tenant.digest: self.tenant}
        self.service.registry = SimpleNamespace(get=lambda name, owner: self.service.generations[f"resp_{name}"])
        ways, recorder = (self.client.send, self.client.write), self.file.sessions.recorder("s1")
        self.session = Session(self.service, self.tenant, *ways, id="s1", recorder=recorder)
        self.client.writing = lambda: self.session._writing
        self.sent = 0
        self.calls: dict[str, int] = {}

    async def act(self, action: Any) -> None:
        """Perform one action."""
        match action:
            case {"type": str()}:
                await self.send(action)
            case (index, record):
                self.write(index, record)
            case "stall" | "drain":
                self.client.has_room = action == "drain"
            case "sleep":
                await asyncio.sleep(0.001)
            case "lose":
                await self.lose()
            case "kill":
                await self.kill()
            case "delete an answer":
                answers = [item for item in self.client.items if item not in IDS]
                if answers:
                    await self.send({"type": "conversation.item.delete", "item_id": answers[-1]})

    async def send(self, event: dict[str, Any]) -> None:
        """Send an event, and check that it is answered."""
        self.sent += 1
        client, event_id = self.client, f"client_{self.sent}"
        before = len(client.received)
        client.has_room = True
        await self.session.handle_frame(json.dumps({**event, "event_id": event_id}))
        found = client.received[before:]
        refused = [each for each in found if each["type"] == "error" and each["error"]["event_id"] == event_id]
        accepted = [each for each in found if each["type"] == ACKNOWLEDGED.get(event["type"])]
        if event["type"] == "session.update":
            assert refused or accepted
        elif event["type"] in ACKNOWLEDGED:
            assert len(refused) + len(accepted) >= 1
        running = [each for each in self.session._responses.values() if not each.generation.log.is_closed]
        assert sum(response.fields.is_in_conversation for response in running) <= 1

    def write(self, index: int, kind: str) -> None:
        """Write a record of a running response."""
        running = [each for each in self.session._responses.values() if not each.generation.log.is_closed]
        if not running:
            return
        response = running[index % len(running)]
        generation, calls = response.generation, self.calls.setdefault(response.id, 0)
        match kind:
            case "text" if not calls:
                generation.write(Delta(0, "word ", 1))
            case "reasoning" if not calls:
                generation.write(Delta(0, "", 1, reasoning="hm "))
            case "call":
                piece = ToolCallPiece(calls, "{", f"call_{response.id}_{calls}", "f")
                self.calls[response.id] += 1
                generation.write(Delta(0, "", 1, calls=(piece,)))
            case "piece" if calls:
                generation.write(Delta(0, "", 1, calls=(ToolCallPiece(calls - 1, "}"),)))
            case "end":
                generation.write(ChoiceFinished(0, "stop"), Usage(1, 1, 0))
            case "fail":
                generation.write(Failure("It failed.", "engine_died", None))

    async def lose(self) -> None:
        """Lose the connection, and take the session up over another one."""
        self.client.is_connected, self.client.has_room = False, True
        await self.session.detach()
        self.client.is_connected = True
        self.session.attach(self.tenant, self.client.send, self.client.write, "")
        await self.session.open()
        assert not self.session.client_stalled.is_set()

    async def kill(self) -> None:
        """Lose the process, and take the session up in the next one."""
        before, growing = self.session, self.growing()
        self.client.is_connected, self.client.has_room = False, True
        await before.detach()
        self.file.close()
        self.file = StateFile(self.path)
        [(saved, recorder)] = self.file.sessions.read()
        self.file.writer.start()
        session = await restored_session(self.service, saved, recorder)
        assert session is not None
        complete = [item.view() for item in before.items if item.id not in growing]
        assert [item.view() for item in session.items] == complete
        assert session.fields == before.fields
        self.client.is_connected, self.session = True, session
        session.attach(self.tenant, self.client.send, self.client.write, "")
        await session.open()

    def growing(self) -> set[str]:
        """Return the ids of the items of responses in progress."""
        return {item.id for response in self.session._responses.values() for item in response.output.items}

    def close(self) -> None:
        """End the session, which leaves nothing in the store."""
        self.session.end()
        self.file.close()
        file = StateFile(self.path)
        assert file.sessions.read() == []
        file.close()

    async def finish(self) -> None:
        """End all responses, and wait for their events."""
        self.client.has_room = True
        for generation in self.service.generations.values():
            generation.write(ChoiceFinished(0, "stop"), Usage(1, 1, 0))
        async with asyncio.timeout(HANG_SECONDS):
            while self.session._responses:
                await asyncio.sleep(0)
            while self.client.running:
                await asyncio.sleep(0)

    def check(self) -> None:
        """Check that the client has the state of the session."""
        assert self.client.items == [item.id for item in self.session.items]
        assert self.client.ended == set(self.service.generations)
        ids = [event["event_id"] for event in self.client.received]
        assert len(set(ids)) == len(ids)
        assert self.session._writing is None and not self.session.client_stalled.is_set()
        for request in self.service.requests:
            assert request.origin is not None
            again = RealtimeRequest.model_validate_json(request.origin.body).generation_request()
            assert again.prompt == request.prompt


RESPOND = {"type": "response.create", "response": {}}


@given(st.lists(ACTIONS, max_size=60))
@example([RESPOND, "stall", (0, "fail"), "sleep", "lose"])  # the connection is lost before response.done is sent
@example([RESPOND, (0, "text"), "lose", (0, "call"), "lose", (0, "end"), "sleep", "lose", RESPOND])
@settings(max_examples=examples(300), deadline=None)
def test_a_client_has_the_state_of_its_session_after_any_events(actions: list[Any]):
    """Items are in order, each response ends once, no event is lost, and one response at a time writes. A session of a
    killed process has the same items and fields in the next one.
    """

    async def run(path: Path) -> None:
        state = Run(path)
        await state.session.open()
        await state.send({"type": "conversation.item.create", "item": message("user")})
        for action in actions:
            await state.act(action)
            await asyncio.sleep(0)  # tasks begin to follow logs
        await state.finish()
        state.check()
        await state.session.detach()
        state.close()

    assert MAX_BURST > 60  # so that no event is delayed
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(run(Path(folder) / "s.db"))
