"""WebSocket of `/v1/responses` on the real application, with a fake engine on a thread."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from openai.types.responses import ResponseSteerAcceptedEvent, ResponseSteerFailedEvent, ResponseSteerPendingEvent
from openai.types.responses.responses_server_event import ResponsesServerEvent
from pydantic import TypeAdapter
from starlette.testclient import TestClient, WebSocketDenialResponse

from app.admission.body_budget import BodyBudget
from app.admission.tenants import tenant_of_key
from app.conversations.connection_memory import MAX_LANES
from app.conversations.memory_store import MemoryStore
from app.conversations.shelf import Limits
from app.protocols.responses import ResponsesRequest
from app.protocols.responses_events import TYPES, ResponseCreate, ResponseSteer, body_of
from app.protocols.schema import parse
from app.routes.responses_lane import MAX_STEERS, STEER_EVENTS, Steer, Turn
from app.routes.responses_session import MAX_RESPONSES
from tests.app.routes.test_http import make, ready
from tests.app.routes.test_responses import BODY, RESPONSES, events
from tests.limits import HANG_SECONDS

ENDLESS = {"input": "hi", "max_output_tokens": 10**6}
ENDS = ("response.completed", "response.incomplete", "response.failed", "error")
ANY = "any lane"
EVENT = TypeAdapter(ResponsesServerEvent)


class Socket:
    """Open WebSocket."""

    def __init__(self, session) -> None:
        self.session = session

    def send(self, kind: str = "response.create", **fields) -> None:
        self.session.send_text(json.dumps({"type": kind, **fields}))

    def until(self, *kinds: str, lane: str | None = ANY) -> list[dict]:
        """Return the next events, of one lane or of all, up to the first one of these types."""
        found: list[dict] = []
        while not found or found[-1]["type"] not in kinds:
            event = self.session.receive_json()
            if lane in (ANY, event.get("stream_id")):
                found.append(event)
        return found

    def create(self, **fields) -> dict:
        """Return the response of a request, or the error."""
        self.send(**{**BODY, **fields})
        last = self.until(*ENDS, lane=fields.get("stream_id"))[-1]
        return last.get("response") or last["error"]

    def begin(self, **fields) -> str:
        """Return the id of an endless response once it has a token."""
        self.send(**{**ENDLESS, **fields})
        lane = fields.get("stream_id")
        return self.until("response.output_text.delta", lane=lane)[0]["response"]["id"]

    def end(self, response_id: str) -> None:
        self.send("response.cancel", response_id=response_id)
        while (ended := self.until("response.incomplete")[-1])["response"]["id"] != response_id:
            pass
        assert ended["response"]["status"] == "cancelled"


@contextmanager
def connected(http: TestClient, key: str = "", **headers: str) -> Iterator[Socket]:
    if key:
        headers["Authorization"] = f"Bearer {key}"
    with http.websocket_connect(RESPONSES, headers={"Host": "localhost"} | headers) as session:
        yield Socket(session)


@pytest.fixture(scope="module")
def http():
    with make(max_body=50_000) as client:
        yield ready(client)


@pytest.fixture(scope="module")
def with_keys():
    with make(tenants=(tenant_of_key("alice"), tenant_of_key("bob"))) as client:
        yield ready(client)


@pytest.fixture
def socket(http):
    with connected(http) as opened:
        yield opened
    wait_until_forgotten(http)


def wait_until_forgotten(http: TestClient) -> None:
    """Wait for the end of connections, which forgets their responses."""
    deadline = time.monotonic() + HANG_SECONDS
    while http.app.state.service.unstored.usage()["responses"].records:
        assert time.monotonic() < deadline
        http.get("/livez")


def plain(found: list[dict]) -> list[dict]:
    """Return events without what differs between two equal requests."""
    text = json.dumps(found).replace(found[0]["response"]["id"].removeprefix("resp_"), "ID")
    parsed = json.loads(text)
    for event in parsed:
        for name in ("created_at", "completed_at", "usage"):
            event.get("response", {}).pop(name, None)
    return parsed


def test_events_are_those_of_http(http, socket):
    """Types, numbers and fields are equal, and they are valid for OpenAI's client."""
    body = BODY | {"seed": 3, "metadata": {"topic": "foxes"}, "instructions": "Be brief."}
    over_http = events(http.post(RESPONSES, json=body | {"stream": True}))
    socket.send(**body)
    found = socket.until(*ENDS)
    assert plain(found) == plain(over_http)
    for event in found:
        EVENT.validate_python(event, strict=True)


def test_a_lane_is_named_in_each_of_its_events(socket):
    """Requests of one lane are served one after another, and events of two lanes may alternate."""
    for stream_id in ("a", "b", "a"):
        socket.send(**BODY, stream_id=stream_id)
    found: dict[str, list[dict]] = {"a": [], "b": []}
    while sum(event["type"] in ENDS for each in found.values() for event in each) < 3:
        event = socket.session.receive_json()
        found[event["stream_id"]].append(event)
    kinds = [event["type"] for event in found["a"] if event["type"] in ("response.created", *ENDS)]
    assert kinds == ["response.created", "response.incomplete"] * 2


def test_a_request_waits_for_the_one_before_it_in_its_lane(socket):
    """One may continue a response that still runs, and its error does not end the lane."""
    running = socket.begin(stream_id="a")
    socket.send(**BODY, stream_id="a", previous_response_id=running, event_id="e2")
    socket.send(**BODY, stream_id="a", previous_response_id="resp_unknown", event_id="e3")
    socket.send(**BODY, stream_id="a")
    socket.end(running)
    assert socket.until(*ENDS)[-1]["response"]["previous_response_id"] == running
    refused = socket.until(*ENDS)[-1]
    assert (refused["event_id"], refused["stream_id"]) == ("e3", "a")
    assert refused["error"]["code"] == "previous_response_not_found" and refused["status"] == 400
    assert socket.until(*ENDS)[-1]["type"] == "response.incomplete"


def test_lanes_without_end_are_refused_by_name(http, socket):
    """A refused one starts nothing, is counted, and another may begin once one has ended."""
    running = [socket.begin(stream_id=str(number)) for number in range(4)]
    for number in range(4, MAX_RESPONSES):  # these have no slot, or wait in a lane
        socket.send(**ENDLESS, stream_id=str(number % 6))
    for _ in range(50):
        socket.send(**ENDLESS, stream_id="more", event_id="e")
        error = socket.until("error", lane="more")[-1]
        assert (error["status"], error["error"]["code"], error["event_id"]) == (429, "too_many_responses", "e")
        assert str(MAX_RESPONSES) in error["error"]["message"]
    assert 'code="too_many_responses"' in http.get("/metrics").text
    assert len(http.app.state.service.registry.live()) <= 6
    socket.end(running[0])
    socket.send(**BODY, stream_id="more")
    assert socket.until("response.created", "error", lane="more")[-1]["type"] == "response.created"


def test_all_responses_end_with_their_connection(http):
    """Neither a generation nor memory is left, and requests that waited are never started."""
    service = http.app.state.service
    with connected(http) as socket:
        socket.begin(store=False)
        for number in range(6):
            socket.send(**ENDLESS, stream_id=str(number % 3), store=False)
    http.get("/health")
    assert service.registry.live() == [] or all(g.log.is_closed for g in service.registry.live())
    assert service.unstored.usage()["responses"].records == 0


def test_an_unstored_response_is_continued_on_its_connection_only(http, socket):
    """The newest response of a lane can be continued, also in another lane, and not over HTTP."""
    first = socket.create(store=False, stream_id="a")
    second = socket.create(store=False, stream_id="a", previous_response_id=first["id"], input="and then?")
    assert second["usage"]["input_tokens"] > first["usage"]["input_tokens"] + first["usage"]["output_tokens"]
    forked = socket.create(store=False, stream_id="b", previous_response_id=second["id"])
    assert forked["previous_response_id"] == second["id"]
    unknown = {"code": "previous_response_not_found", "type": "invalid_request_error"}
    assert socket.create(previous_response_id=first["id"]).items() >= unknown.items()  # not the newest any more
    with connected(http) as other:
        assert other.create(previous_response_id=second["id"]).items() >= unknown.items()
    answer = http.post(RESPONSES, json=BODY | {"previous_response_id": second["id"]})
    assert answer.json()["error"].items() >= unknown.items()


def test_a_stored_response_may_continue_an_unstored_one(http, socket):
    """It keeps the items before it, and can be read and continued over HTTP."""
    first = socket.create(store=False)
    second = socket.create(previous_response_id=first["id"])
    third = http.post(RESPONSES, json=BODY | {"previous_response_id": second["id"]}).json()
    assert third["usage"]["input_tokens"] > second["usage"]["input_tokens"] > first["usage"]["input_tokens"]
    fourth = socket.create(previous_response_id=third["id"], store=False)
    assert fourth["usage"]["input_tokens"] > third["usage"]["input_tokens"]


def test_the_memory_of_a_connection_is_bounded(http, socket):
    """It keeps the newest responses of `MAX_LANES` lanes, within the bytes of all connections."""
    store = http.app.state.service.unstored
    for number in range(MAX_LANES + 4):
        socket.create(store=False, stream_id=str(number))
    socket.send("response.nonsense")
    socket.until("error")  # the last lane has ended, which its last event precedes
    assert store.usage()["responses"].records == MAX_LANES
    http.app.state.service.unstored = small = MemoryStore(Limits(records=100, bytes=20_000))
    try:
        with connected(http) as other:
            for number in range(8):
                other.create(store=False, stream_id=str(number), input="a" * 5_000)
            assert small.usage()["responses"].bytes <= 20_000 and small.usage()["responses"].evicted
    finally:
        http.app.state.service.unstored = store
    assert 'kind="connection_responses"' in http.get("/metrics").text


def test_responses_of_another_owner_are_unknown(with_keys):
    """The errors for them are those for responses that do not exist."""
    with connected(with_keys, "alice") as alice, connected(with_keys, "bob") as bob:
        stored, unstored, running = alice.create()["id"], alice.create(store=False)["id"], alice.begin(stream_id="r")
        for given in (stored, unstored, running):
            refused = bob.create(previous_response_id=given)
            unknown = bob.create(previous_response_id="resp_x")
            assert refused == json.loads(json.dumps(unknown).replace("resp_x", given))
            bob.send("response.cancel", response_id=given)
            assert bob.until("error")[-1]["error"]["code"] == "response_not_found"
            bob.send("response.steer", previous_response_id=given, input="hi")
            assert bob.until("response.steer.failed")[-1]["error"]["code"] == "response_not_found"
        alice.end(running)


def test_a_response_is_cancelled(http, socket):
    """It ends as POST /cancel ends it, one that has ended stays as it is, and an unknown one is an error."""
    running = socket.begin()
    socket.send("response.cancel", response_id=running)
    ended = socket.until("response.incomplete")[-1]["response"]
    assert ended["status"] == "cancelled" and ended == http.post(f"{RESPONSES}/{running}/cancel").json()
    socket.send("response.cancel", response_id=running)
    socket.send("response.cancel", response_id="resp_unknown", event_id="e1")
    [error] = socket.until("error")
    assert (error["status"], error["error"]["code"], error["event_id"]) == (404, "response_not_found", "e1")


def test_a_steered_response_is_continued_with_the_input(http, socket):
    """It ends as incomplete, and another one with its settings begins by itself."""
    given = socket.begin(stream_id="a", metadata={"topic": "foxes"}, seed=5, store=False)
    socket.send("response.steer", previous_response_id=given, input=[{"role": "user", "content": "shorter"}])
    found = socket.until("response.incomplete")
    accepted = next(event for event in found if event["type"] == "response.steer.accepted")
    ResponseSteerAcceptedEvent.model_validate(accepted, strict=True)
    assert accepted["steer"]["previous_response_id"] == given and accepted["stream_id"] == "a"
    steered = found[-1]["response"]
    assert steered["incomplete_details"] == {"reason": "steered"} and steered["output"][0]["status"] == "incomplete"
    created = socket.until("response.created")[-1]
    assert created["response"]["previous_response_id"] == given and created["stream_id"] == "a"
    assert created["response"]["metadata"] == {"topic": "foxes"}
    socket.end(created["response"]["id"])


def test_wrong_steering_returns_the_input(http, socket):
    """The error has the protocol's code."""
    ended = socket.create()["id"]
    conversation = http.post("/v1/conversations", json={}).json()["id"]
    bound = socket.begin(conversation=conversation, stream_id="c")
    for fields, code in (
        ({"previous_response_id": "resp_x", "input": "hi"}, "response_not_found"),
        ({"previous_response_id": ended, "input": "hi"}, "response_already_completed"),
        ({"previous_response_id": bound, "input": "hi"}, "steering_not_supported"),
        ({"previous_response_id": bound, "input": []}, "invalid_input"),
        ({"previous_response_id": bound, "input": [{"role": "system", "content": "hi"}]}, "invalid_input"),
        ({"previous_response_id": bound, "input": "hi", "stream_id": "c"}, "invalid_input"),
    ):
        socket.send("response.steer", **fields)
        failed = socket.until("response.steer.failed")[-1]
        if code != "invalid_input":
            ResponseSteerFailedEvent.model_validate(failed, strict=True)
        assert (failed["error"]["code"], failed["steer"]["input"]) == (code, fields["input"])
    socket.send("response.steer", input="hi")
    assert socket.until("error")[-1]["error"]["param"] == "previous_response_id"
    socket.end(bound)


def test_a_flood_of_steers_is_bounded(http, socket, monkeypatch: pytest.MonkeyPatch):
    """While a response cannot be ended, `MAX_STEERS` inputs wait for it, and further ones are returned."""
    monkeypatch.setattr("app.generation.generation.Generation.is_calling", True)
    monkeypatch.setattr("app.routes.responses_session.STEER_EVENTS", 0)
    given = socket.begin()
    for number in range(MAX_STEERS + 40):
        socket.send("response.steer", previous_response_id=given, input=f"message {number}")
    kinds = []
    while kinds.count("response.steer.failed") < 40:
        event = socket.session.receive_json()
        kinds.append(event["type"])
        if event["type"] == "response.steer.failed":
            assert event["error"]["code"] == "too_many_pending_steers" and "id" not in event["steer"]
    assert kinds.count("response.steer.accepted") == MAX_STEERS
    socket.send("response.cancel", response_id=given)
    failed = [event for event in socket.until("response.incomplete") if "steer" in event["type"]]
    while len(failed) < MAX_STEERS:
        failed += [event for event in [socket.session.receive_json()] if event["type"] == "response.steer.failed"]
    assert {event["error"]["code"] for event in failed} == {"response_not_active"}
    assert [event["steer"]["input"] for event in failed] == [f"message {number}" for number in range(MAX_STEERS)]


def test_input_waits_for_the_outputs_of_calls(http, socket, monkeypatch: pytest.MonkeyPatch):
    """The request in its lane that continues a response with calls has the input too."""
    monkeypatch.setattr("app.routes.responses_lane.Turn.finish", "tool_calls")
    given = socket.begin(stream_id="a")
    socket.send("response.steer", previous_response_id=given, input="shorter")
    found = socket.until("response.steer.pending")
    pending = ResponseSteerPendingEvent.model_validate(found[-1], strict=True)
    accepted = next(event for event in found if event["type"] == "response.steer.accepted")
    assert (pending.steer.id, pending.reason) == (accepted["steer"]["id"], "waiting_for_required_input")
    assert "response.incomplete" in [event["type"] for event in found]
    texts = []
    for stream_id in ("b", "a", "a"):
        continued = socket.create(previous_response_id=given, stream_id=stream_id, input="go on")
        items = http.get(f"{RESPONSES}/{continued['id']}/input_items?order=asc").json()["data"]
        texts.append([item["content"][0]["text"] for item in items])
    assert texts == [["go on"], ["shorter", "go on"], ["go on"]]


def test_steering_counts_as_many_events(socket, monkeypatch: pytest.MonkeyPatch):
    """So a socket that steers without end is read slowly; a refused steering counts too."""
    counted: list[int] = []
    monkeypatch.setattr("app.routes.frame_pace.FramePace.count_events", lambda self, number: counted.append(number))
    socket.send("response.steer", previous_response_id="resp_x", input="hi")
    socket.until("response.steer.failed")
    assert counted == [STEER_EVENTS]


def test_a_steered_response_that_cannot_be_continued_returns_the_input(socket, monkeypatch: pytest.MonkeyPatch):
    """The error of the request is sent too."""
    given = socket.begin()
    text = "a" * 20_000  # more than the context of the model
    socket.send("response.steer", previous_response_id=given, input=text)
    assert socket.until("response.incomplete")[-1]["response"]["incomplete_details"] == {"reason": "steered"}
    assert socket.until("error")[-1]["status"] == 400
    failed = socket.until("response.steer.failed")[-1]
    assert (failed["error"]["code"], failed["steer"]["input"]) == ("successor_creation_failed", text)
    assert "id" in failed["steer"]


def test_a_request_without_output_prepares_its_prompt(socket):
    """Its response is complete and empty, and can be continued."""
    prepared = socket.create(generate=False, instructions="Be brief.", input=[], store=False, max_output_tokens=50)
    assert (prepared["status"], prepared["output"], prepared["usage"]["output_tokens"]) == ("completed", [], 0)
    assert socket.create(previous_response_id=prepared["id"])["previous_response_id"] == prepared["id"]


@pytest.mark.parametrize(
    ("frame", "param"),
    [
        ("{", None),
        ("[]", "type"),
        ("{}", "type"),
        ('{"type": "session.update"}', "type"),
        ('{"type": "response.create", "input": "hi", "background": true}', "background"),
        ('{"type": "response.create", "input": []}', "input"),
        ('{"type": "response.create", "input": "hi", "temperature": 9}', "temperature"),
        ('{"type": "response.create", "input": "hi", "model": "other"}', "model"),
        ('{"type": "response.create", "input": "hi", "stream_id": ""}', "stream_id"),
        ('{"type": "response.cancel"}', "response_id"),
    ],
)
def test_a_wrong_frame_is_an_error_and_the_connection_goes_on(socket, frame: str, param: str | None):
    """The error has the body of the HTTP error, with its status."""
    socket.session.send_text(frame)
    [refused] = socket.until("error")
    assert refused["error"]["param"] == param and 400 <= refused["status"] < 500
    assert socket.create()["status"] == "incomplete"


def test_an_unknown_event_lists_the_known_ones(socket):
    """Its name is in the message too."""
    socket.send("response.nonsense")
    message = socket.until("error")[-1]["error"]["message"]
    assert all(kind in message for kind in (*TYPES, "response.nonsense"))


def test_a_long_frame_is_parsed_in_a_thread(socket):
    """Its errors are those of a short one."""
    long = "a" * 40_000
    assert socket.create(input=long)["param"] == "input"  # longer than the context of the model
    assert socket.create(input=long, temperature=9)["param"] == "temperature"
    socket.session.send_text(f'{{"type": "response.create", "input": "{long}"')
    assert socket.until("error")[-1]["status"] == 400


def test_a_handshake_is_refused_as_over_realtime(http, with_keys):
    """A wrong key, an unknown model and a wrong time of resumption are HTTP errors."""
    for client, path, headers, code in (
        (with_keys, RESPONSES, {"Authorization": "Bearer eve"}, 401),
        (http, f"{RESPONSES}?model=other", {}, 404),
        (http, RESPONSES, {"X-Carousel-Resume": "soon"}, 400),
    ):
        with (
            pytest.raises(WebSocketDenialResponse) as refused,
            client.websocket_connect(path, headers={"Host": "localhost"} | headers),
        ):
            pass
        assert refused.value.status_code == code


def test_a_response_continues_after_its_connection_if_asked(http):
    """Its events can be read over HTTP."""
    with connected(http, **{"X-Carousel-Resume": "60"}) as socket:
        given = socket.begin()
    assert http.get(f"{RESPONSES}/{given}").json()["status"] == "in_progress"
    assert http.post(f"{RESPONSES}/{given}/cancel").json()["status"] == "cancelled"


async def test_input_is_inserted_after_outputs_of_calls():
    """Chat templates need outputs directly after their calls."""
    create = ResponseCreate(
        type="response.create",
        input=[{"type": "function_call_output", "call_id": "c", "output": "18"}, {"role": "user", "content": "go on"}],
    )
    memory = BodyBudget(1, 1).memory("anna")
    turn = Turn(create, "", 0, memory)
    event = ResponseSteer(type="response.steer", previous_response_id="resp_1", input="shorter")
    turn.with_steers([Steer(event, 0, memory)])
    assert [getattr(item, "content", "18") for item in turn.body.items] == ["18", "shorter", "go on"]


def test_a_restarted_server_reads_the_body_of_a_frame():
    """It is a body of POST /v1/responses, without the fields of the frame."""
    frame = {"type": "response.create", "input": "hi", "seed": 3, "stream_id": "a", "event_id": "e", "generate": True}
    body = parse(ResponsesRequest, body_of(json.dumps(frame)))
    assert (body.input, body.seed, body.is_streamed) == ("hi", 3, True)
