"""Clients that disconnect, reconnect, or never reconnect."""

from __future__ import annotations

import json
import re
import time

import httpx
import pytest

from tests.limits import HANG_SECONDS

BODY = {"messages": [{"role": "user", "content": "Tell me a story about a fox."}], "stream": True, "ignore_eos": True}

WITH_IDS = {"X-Carousel-Resume": "0"}  # with ids, and without grace time after a disconnect


def events(response: httpx.Response):
    """Yield (event id, data) of each event of an SSE response."""
    last_id = None
    for line in response.iter_lines():
        if line.startswith("id: "):
            last_id = line[4:]
        elif line.startswith("data: "):
            yield last_id, line[6:]


def running(http: httpx.Client) -> float:
    """Return the number of running, waiting and paused requests in the metrics."""
    metrics = http.get("/metrics").text
    return sum(
        float(v)
        for v in re.findall(r"^(?:vllm|carousel):num_requests_(?:running|waiting|paused)\{.*\} (\S+)$", metrics, re.M)
    )


def wait_until_idle(http: httpx.Client, seconds: float = 10.0) -> None:
    """Wait until nothing runs; fail after `seconds`."""
    deadline = time.monotonic() + seconds
    while running(http):
        assert time.monotonic() < deadline, "a request is still in its slot"
        time.sleep(0.02)


@pytest.fixture
def http(slow_server):
    with httpx.Client(base_url=slow_server.url, timeout=HANG_SECONDS) as client:
        wait_until_idle(client)
        yield client


def test_a_reader_that_leaves_frees_its_slot(http):
    """Without a requested grace time, the request ends with its reader."""
    with http.stream("POST", "/v1/chat/completions", json=BODY | {"max_tokens": 900}) as response:
        stream_events = events(response)  # a reference: a generator that is collected closes the connection
        for _ in range(3):
            next(stream_events)
        assert running(http) == 1
    wait_until_idle(http)


def test_an_abandoned_answer_ends_with_an_error(http):
    """A late reader gets the text so far, then an error and no [DONE], and nothing after that."""
    with http.stream("POST", "/v1/chat/completions", json=BODY | {"max_tokens": 900}, headers=WITH_IDS) as response:
        stream = response.headers["x-carousel-stream"]
        seen = [event for event, _ in zip(events(response), range(3), strict=False)]
    wait_until_idle(http)
    with http.stream("GET", f"/v1/streams/{stream}", headers={"Last-Event-ID": seen[-1][0]}) as response:
        rest = list(events(response))
    assert json.loads(rest[-1][1])["error"]["code"] == "abandoned"
    assert "[DONE]" not in [data for _, data in rest]
    assert not any(choice.get("finish_reason") for _, data in rest for choice in json.loads(data).get("choices", []))
    assert http.get(f"/v1/streams/{stream}", headers={"Last-Event-ID": rest[-1][0]}).status_code == 204


def test_a_whole_answer_whose_client_leaves_frees_its_slot(http):
    """This holds without streaming too."""
    timeout = httpx.Timeout(10, read=0.05)  # long before the answer is complete
    with pytest.raises(httpx.ReadTimeout):
        http.post("/v1/chat/completions", json=BODY | {"max_tokens": 900, "stream": False}, timeout=timeout)
    wait_until_idle(http)


def test_an_answer_continues_for_a_reader_that_reconnects(http):
    """With X-Carousel-Resume, missed events are replayed and new ones are live; none is lost or repeated."""
    body = BODY | {"max_tokens": 60, "temperature": 0.9, "seed": 5}
    with http.stream("POST", "/v1/chat/completions", json=body) as response:
        undisturbed = [data for _, data in events(response)]
    with http.stream("POST", "/v1/chat/completions", json=body, headers={"X-Carousel-Resume": "30"}) as response:
        stream = response.headers["x-carousel-stream"]
        first = [event for event, _ in zip(events(response), range(7), strict=False)]
    received = list(first)
    for _ in range(3):  # disconnect and reconnect three times
        with http.stream("GET", f"/v1/streams/{stream}", headers={"Last-Event-ID": received[-1][0]}) as response:
            assert response.headers["content-type"].startswith("text/event-stream")
            received += [event for event, _ in zip(events(response), range(9), strict=False)]
    with http.stream("GET", f"/v1/streams/{stream}?starting_after={received[-1][0]}") as response:
        received += list(events(response))
    assert received[-1][1] == "[DONE]"

    def text(items):
        chunks = [json.loads(data) for data in items if data != "[DONE]"]
        return "".join(c["choices"][0]["delta"].get("content", "") for c in chunks if c["choices"])

    assert text(data for _, data in received) == text(undisturbed)
    assert len({event_id for event_id, _ in received}) == len(received)


def test_a_finished_stream_can_be_read_again_from_its_start(http):
    """The bytes equal those that the first reader got."""
    with http.stream("POST", "/v1/chat/completions", json=BODY | {"max_tokens": 12}, headers=WITH_IDS) as response:
        stream = response.headers["x-carousel-stream"]
        first = list(events(response))
    with http.stream("GET", f"/v1/streams/{stream}") as response:
        assert list(events(response)) == first


def test_stopping_a_stream_ends_it_for_its_reader_and_frees_its_slot(http):
    """DELETE is the stop button, and the reader gets a regular end."""
    with http.stream("POST", "/v1/chat/completions", json=BODY | {"max_tokens": 900}) as response:
        stream_events = events(response)
        next(stream_events)
        assert http.delete(f"/v1/streams/{response.headers['x-carousel-stream']}").status_code == 204
        rest = [data for _, data in stream_events]
    assert rest[-1] == "[DONE]"
    assert json.loads(rest[-2])["choices"][0]["finish_reason"] == "stop"
    wait_until_idle(http)


@pytest.mark.parametrize(
    ("cursor", "status"),
    [
        ("rubbish", 400),
        ("{stream}.{epoch}.x", 400),
        ("{stream}.{epoch}.999999", 400),
        ("{stream}.abcdef.1", 410),
        ("another.{epoch}.1", 400),
    ],
)
def test_a_cursor_that_cannot_be_served_is_refused_before_any_data(http, cursor: str, status: int):
    """The status is 400 for an invalid cursor and 410 for a lost one."""
    with http.stream("POST", "/v1/chat/completions", json=BODY | {"max_tokens": 2}, headers=WITH_IDS) as response:
        event_id, _ = next(events(response))
    stream, epoch, _ = event_id.split(".")
    answer = http.get(f"/v1/streams/{stream}", headers={"Last-Event-ID": cursor.format(stream=stream, epoch=epoch)})
    assert answer.status_code == status
    assert answer.json()["error"]["message"]


def test_an_unknown_stream_is_not_found(http):
    """This holds for reading and for stopping."""
    unknown = http.get("/v1/streams/nothing")
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "stream_not_found")
    assert http.delete("/v1/streams/nothing").status_code == 404


def test_no_block_is_without_data(http):
    """A bare id, event or retry breaks five of seven clients, while comments are safe."""
    body = http.post("/v1/chat/completions", json=BODY | {"max_tokens": 5}, headers=WITH_IDS).text
    for block in filter(None, re.split(r"\r?\n\r?\n", body)):
        lines = block.splitlines()
        assert all(line.startswith(":") for line in lines) or any(line.startswith("data: ") for line in lines), block


@pytest.mark.parametrize(
    ("path", "body"), [("chat/completions", BODY), ("completions", {"prompt": "Once", "stream": True})]
)
def test_a_client_without_resume_gets_data_lines_only(http, path: str, body: dict):
    """litellm takes a late id for the end of all choices, and vLLM's benchmark parses lines before `data:` as JSON."""
    more = {"max_tokens": 5, "n": 2, "stream_options": {"include_usage": True}}
    lines = http.post(f"/v1/{path}", json=body | more).text.splitlines()
    assert {line.partition(" ")[0] for line in lines} == {"data:", ""}


def test_a_chunk_has_the_usage_of_its_choice_so_far(http):
    """Benchmarks request `continuous_usage_stats`, and a reader that resumes gets the same values."""
    options = {"include_usage": True, "continuous_usage_stats": True}
    more = {"max_tokens": 5, "n": 2, "stream_options": options}
    with http.stream("POST", "/v1/chat/completions", json=BODY | more, headers=WITH_IDS) as response:
        stream = response.headers["x-carousel-stream"]
        chunks = [(event_id, json.loads(data)) for event_id, data in events(response) if data != "[DONE]"]
    total = chunks.pop()[1]["usage"]
    of_choice: list[list[int]] = [[], []]
    for _, chunk in chunks:
        usage = chunk["usage"]
        assert usage["prompt_tokens"] == total["prompt_tokens"]
        assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
        of_choice[chunk["choices"][0]["index"]].append(usage["completion_tokens"])
    assert all(counts == sorted(counts) and counts[0] == 0 and len(set(counts)) > 3 for counts in of_choice)
    assert sum(counts[-1] for counts in of_choice) == total["completion_tokens"] == 10
    with http.stream("GET", f"/v1/streams/{stream}", headers={"Last-Event-ID": chunks[4][0]}) as response:
        assert json.loads(next(events(response))[1]) == chunks[5][1]
