"""`carousel bench`: requests, parsed responses and reported figures."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import islice, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.__main__ import main
from app.cli.bench import (
    measure,
    options,
    plots,
    report,
)
from app.cli.bench.client import (
    Answer,
    Events,
    ResponseError,
    ServerUnreachable,
    Target,
    request_json,
    resolve_address,
    stream_completion,
)
from app.cli.bench.command import write
from app.cli.bench.measure import Record, Slo
from app.cli.bench.traffic import TargetServer, Traffic, cut_to_context, goes_to_b, jobs, query_server
from app.cli.bench.workloads import WORKLOADS, Scale, WorkloadRequest, prompt_ids, workload
from tests.limits import HANG_SECONDS

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

SAMPLE_SIZE = 20_000


def record(number: int = 0, **fields) -> Record:
    known = {"server": "a", "tier": "default", "tenant": "", "requested_prompt": 4, "requested_output": 3, "due": 0.0}
    known |= {"sent": 0.0, "ended": 1.0, "outcome": "done", "status": 200}
    return Record(number=number, **known | fields)


def given_options(*arguments: str) -> options.Options:
    import argparse

    parser = argparse.ArgumentParser()
    options.add_arguments(parser)
    return options.check(vars(parser.parse_args(arguments)))


# Requests


def test_the_command_line_names_the_workloads_that_there_are():
    """The list is duplicated so that `carousel serve` need not load the workloads."""
    assert set(options.WORKLOADS) == set(WORKLOADS)


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_workload_is_determined_by_its_seed_and_ordered_by_time(name: str):
    """A seed gives the same requests each time, another seed gives others; counts and lengths are within bounds."""
    scale = Scale(rate=5, prompt=40, output=30, max_tokens=100)
    first, again, other = (list(workload(name, 300, scale, seed)) for seed in (1, 1, 2))
    assert first == again != other
    assert len(first) == 300
    assert all(before.at <= after.at for before, after in pairwise(first))
    assert all(1 <= request.prompt_tokens <= 100 and 1 <= request.output_tokens <= 100 for request in first)


@pytest.mark.parametrize("name", ["uniform", "exponential", "sharegpt", "bursts"])
def test_a_workload_has_the_means_that_it_states(name: str):
    """Rate and lengths match over many requests; cutting exponential answers at four means costs 2 % of theirs."""
    requests = list(workload(name, SAMPLE_SIZE, Scale(rate=5, prompt=40, output=30, max_tokens=100_000)))
    assert SAMPLE_SIZE / requests[-1].at == pytest.approx(5, rel=0.06)
    assert np.mean([one.prompt_tokens for one in requests]) == pytest.approx(40, rel=0.05)
    assert np.mean([one.output_tokens for one in requests]) == pytest.approx(30, rel=0.05)


@pytest.mark.parametrize(("name", "variation"), [("uniform", 1.0), ("bursts", 2.0)])
def test_arrivals_are_as_bursty_as_stated(name: str, variation: float):
    """The coefficient of variation of the gaps is 1 for a Poisson process and 2 for bursts."""
    gaps = np.diff([request.at for request in workload(name, SAMPLE_SIZE, Scale(rate=5))])
    assert gaps.std() / gaps.mean() == pytest.approx(variation, rel=0.06)


def test_shares_of_classes_and_tenants_are_those_of_the_docstrings():
    """A tenth is interactive, nine tenths belong to the flood, and overload is ten times as fast in all classes."""
    scale = Scale(rate=5)
    mixed = [request.tier for request in workload("mixed", SAMPLE_SIZE, scale)]
    assert mixed.count("priority") / SAMPLE_SIZE == pytest.approx(0.1, abs=0.001)
    flood = [request.tenant for request in workload("tenants", SAMPLE_SIZE, scale)].count("flood")
    assert flood / SAMPLE_SIZE == pytest.approx(0.9, abs=0.01)
    overload = list(workload("overload", SAMPLE_SIZE, scale))
    assert SAMPLE_SIZE / overload[-1].at == pytest.approx(50, rel=0.05)
    assert {request.tier for request in overload} == {"priority", "default", "flex"}


def test_prompts_share_only_the_prefix_of_their_group():
    """The first half is shared within a group of `prefixes`; other prompts differ from the first tokens on."""
    one, two = (prompt_ids(WorkloadRequest(0, 20, 1, prefix=3), number, 4096) for number in (1, 2))
    assert one[:10] == two[:10]
    assert one[10:] != two[10:]
    assert prompt_ids(WorkloadRequest(0, 20, 1), 1, 4096)[:4] != prompt_ids(WorkloadRequest(0, 20, 1), 2, 4096)[:4]


SERVED = TargetServer(Target.parse("http://127.0.0.1:1"), "m", 64, tuple(range(500, 700)))


def test_requests_are_cut_to_the_context_and_drawn_from_the_known_ids():
    """Prompt and answer fit together, and another seed has other prompts."""
    first, other = (
        list(jobs(given_options("sharegpt", "--requests", "50", "--seed", seed), {"a": SERVED})) for seed in "12"
    )
    for job in first:
        assert len(job.ids) == job.requested.prompt_tokens
        assert len(job.ids) + job.body["max_tokens"] <= 64
        assert set(job.ids) <= set(SERVED.ids)
    # A prompt that began like one of another run would be found in the prefix cache.
    assert sum(one.ids[:2] == two.ids[:2] for one, two in zip(first, other, strict=True)) <= 2
    assert cut_to_context(WorkloadRequest(0, 500, 500), 64) == WorkloadRequest(0, 63, 1)


def test_the_share_of_b_is_as_configured_and_reproducible():
    """The choice depends only on the number and the seed."""
    for share in (0.1, 0.5):
        chosen = [goes_to_b(3, number, share) for number in range(SAMPLE_SIZE)]
        assert np.mean(chosen) == pytest.approx(share, abs=0.01)
        assert chosen == [goes_to_b(3, number, share) for number in range(SAMPLE_SIZE)]
    assert [goes_to_b(4, number, 0.5) for number in range(64)] != [goes_to_b(3, number, 0.5) for number in range(64)]
    assert not any(goes_to_b(0, number, 0.0) for number in range(100))


def test_two_tokenizers_without_common_ids_are_refused():
    """The two servers could not be given the same prompts."""
    strange = TargetServer(SERVED.target, "other", 64, tuple(range(100)))
    with pytest.raises(ServerUnreachable, match="in common"):
        jobs(given_options("uniform", "--url-b", "http://x"), {"a": SERVED, "b": strange})


# Options


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (["nonsense"], "nonsense"),
        (["--requests", "0"], "--requests"),
        (["--rate", "nan"], "--rate"),
        (["--rate", "inf"], "--rate"),
        (["--rate", "-1"], "--rate"),
        (["--prompt-tokens", "0"], "--prompt-tokens"),
        (["--max-concurrency", "0"], "--max-concurrency"),
        (["--slo-ttft", "nan"], "--slo-ttft"),
        (["--share-b", "0.5"], "--url-b"),
        (["--url-b", "http://127.0.0.1:1", "--share-b", "nan"], "--share-b"),
        (["tenants", "--tenant-key", "flood=x"], "calm"),
        (["tenants", "--tenant-key", "nobody=x"], "NAME=KEY"),
        (["uniform", "--tenant-key", "flood=x"], "tenants"),
        (["--api-key", "two words"], "API key"),
        (["--api-key", "a\r\nX: b"], "API key"),
    ],
)
def test_a_wrong_option_is_named_and_nothing_is_sent(arguments: list[str], names: str, capsys):
    """The command exits with 2 and prints one line."""
    assert main(["bench", *arguments]) == 2
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == 1
    assert names in errors[0]


@pytest.mark.parametrize(
    ("url", "status"),
    [
        *((url, 2) for url in ("ftp://x", "http://", "http://[::1", "http://x y", "x y", "", "http://x:99999")),
        *((url, 2) for url in ("http://key@127.0.0.1:8000", "http://127.0.0.1:1\r\nX: y")),
        *((url, 1) for url in ("http://127.0.0.1:1", "127.0.0.1:1", "localhost:1", "http://" + 80 * "a")),
    ],
)
def test_a_url_that_is_no_server_is_one_line(url: str, status: int, tmp_path, capsys):
    """The status is 2 for an invalid URL and 1 if no server answers, and no folder is created."""
    assert main(["bench", "--url", url, "--out", str(tmp_path / "out")]) == status
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_keys_are_in_no_report():
    """A shared report contains the options but not the secrets."""
    run_options = given_options(
        "tenants", "--tenant-key", "flood=s3cret", "--tenant-key", "calm=s4cret", "--api-key", "s5"
    )
    assert "s3cret" not in str(run_options.view)
    assert "s5" not in str(run_options.view)
    assert (run_options.key_of("flood"), run_options.key_of("calm"), run_options.key_of("")) == (
        "s3cret",
        "s4cret",
        "s5",
    )


# Responses

USAGE = {"prompt_tokens": 4, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 2}}
STREAM = (
    b': carousel {"state": "running"}\n\n'
    b'id: a.b.1\r\ndata: {"choices": [{"text": "d\xc3\xa4ta: \xe2\x82\xac"}]}\r\n\r\n'
    b'data:{"choices": [{"text": ""}]}\n\n'
    b": ping\r\n\r\n"
    b'data: {"choices": [{"text": "\\n\\n"}], "usage": null}\n\n'
    b'data: {"choices": [], "usage": ' + json.dumps(USAGE | {"time_ms": {"queued": 1.5}}).encode() + b"}\n\n"
    b"data: [DONE]\n\n"
)


@given(st.lists(st.integers(0, len(STREAM))))
def test_events_do_not_depend_on_how_the_stream_is_cut(cuts: list[int]):
    """Cuts may fall within a line end and within a character."""
    places = [0, *sorted(cuts), len(STREAM)]
    events = Events()
    found = [event for start, end in pairwise(places) for event in events.feed(STREAM[start:end])]
    assert found == Events().feed(STREAM)
    assert len(found) == 5


@asynccontextmanager
async def serving(handler: Handler) -> AsyncIterator[Target]:
    """Start a server that runs `handler` for each connection, and yield its address."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await handler(reader, writer)
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    async with server:
        yield Target.parse(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")


async def read_request(reader: asyncio.StreamReader) -> str:
    """Read a request and return its head."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    if "Content-Length" in head:
        await reader.readexactly(int(head.partition("Content-Length: ")[2].split()[0]))
    return head


def responding_with(raw: bytes, size: int = 1 << 16) -> Handler:
    """Return a handler that answers every request with `raw`, `size` bytes at a time."""

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        for at in range(0, len(raw), size):
            writer.write(raw[at : at + size])
            await writer.drain()
            await asyncio.sleep(0)

    return handler


def chunked(body: bytes, size: int) -> bytes:
    """Return a 200 response whose body has HTTP chunks of `size` bytes."""
    chunks = [body[at : at + size] for at in range(0, len(body), size)]
    framed = b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks)
    return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + framed + b"0\r\n\r\n"


async def fetch(target: Target) -> Answer:
    answer, ticks = Answer(), iter(range(1_000_000))
    async with asyncio.timeout(HANG_SECONDS):
        await stream_completion(target, {"prompt": [1]}, "key", lambda: float(next(ticks)), answer)
    return answer


@pytest.mark.parametrize("size", [1, 2, 5, 17, 4096])
@pytest.mark.parametrize("written", [1, 3, 64, 4096])
async def test_a_stream_is_parsed_with_any_chunks_and_packets(size: int, written: int):
    """HTTP chunks and writes that end anywhere give two texts, the usage and the end."""
    async with serving(responding_with(chunked(STREAM, size), written)) as target:
        answer = await fetch(target)
    assert (answer.outcome, answer.status, answer.error) == ("done", 200, None)
    assert len(answer.tokens) == 2
    assert answer.tokens == sorted(answer.tokens)
    assert (answer.prompt_tokens, answer.completion_tokens, answer.cached_tokens) == (4, 3, 2)
    assert answer.time_ms == {"queued": 1.5}


async def test_a_body_without_length_ends_with_the_connection():
    """HTTP/1.0 servers send such bodies."""
    async with serving(responding_with(b"HTTP/1.0 200 OK\r\n\r\n" + STREAM, 7)) as target:
        assert (await fetch(target)).outcome == "done"


async def test_an_answer_without_text_has_its_first_token_at_its_end():
    """An answer may consist of special tokens only."""
    silent = b'data: {"choices": [{"text": "", "finish_reason": "length"}]}\n\ndata: [DONE]\n\n'
    async with serving(responding_with(chunked(silent, 9))) as target:
        answer = await fetch(target)
    assert answer.outcome == "done"
    assert len(answer.tokens) == 1


def refusal(status: str, code: str, headers: str = "") -> bytes:
    body = json.dumps({"error": {"message": "no <b>room</b>", "code": code}}).encode()
    return f"HTTP/1.1 {status}\r\n{headers}Content-Length: {len(body)}\r\n\r\n".encode() + body


@pytest.mark.parametrize(
    ("raw", "status", "error", "again"),
    [
        (refusal("429 Too Many", "queue_quota_exceeded", "Retry-After: 7\r\n"), 429, "queue_quota_exceeded", 7.0),
        (refusal("503 No", "server_full", "retry-after: tomorrow\r\n"), 503, "server_full", None),
        (refusal("504 Late", "deadline_exceeded"), 504, "deadline_exceeded", None),
        (b"HTTP/1.1 500 Oops\r\nContent-Length: 6\r\n\r\n<html>", 500, None, None),
    ],
)
async def test_another_status_is_a_refusal(raw: bytes, status: int, error: str | None, again: float | None):
    """The record has the error code and the Retry-After seconds."""
    async with serving(responding_with(raw, 5)) as target:
        answer = await fetch(target)
    assert (answer.outcome, answer.status, answer.error) == ("refused", status, error)
    assert answer.retry_after == again


@pytest.mark.parametrize(
    ("raw", "status", "error"),
    [
        (
            chunked(STREAM[: STREAM.index(b": ping")] + b'data: {"error": {"code": "deadline_exceeded"}}\n\n', 50),
            504,
            "deadline_exceeded",
        ),
        (chunked(STREAM, 50)[:200], 200, "connection"),
        (chunked(STREAM.replace(b"data: [DONE]\n\n", b""), 50), 200, "connection"),
        (chunked(b"data: {}}\n\n", 50), 200, "connection"),
        (chunked(b"data: \xff\n\n", 50), 200, "connection"),
        (chunked(b'data: {"choices": 5}\n\n', 50), 200, "connection"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", None, "connection"),
        (b"SSH-2.0-OpenSSH\r\n", None, "connection"),
        (b"", None, "connection"),
    ],
)
async def test_an_answer_that_is_cut_off_has_failed(raw: bytes, status: int | None, error: str):
    """The error is that of the stream, or `connection` if it was cut off or invalid; nothing is raised."""
    async with serving(responding_with(raw)) as target:
        answer = await fetch(target)
    assert (answer.outcome, answer.status, answer.error) == ("failed", status, error)


async def test_an_event_without_an_end_is_not_kept_for_ever():
    """A line has a maximum size."""
    events = Events()
    with pytest.raises(ResponseError, match="more than"):
        for _ in range(10_000):
            events.feed(b"x" * 4096)


@pytest.mark.parametrize("body", [b"<html>", b"[]", b'{"data": []}', b'{"data": [1]}', b"null", b'{"data": {"a": 1}}'])
async def test_a_server_without_models_is_reported(body: bytes):
    """Any invalid response gives one error line."""
    async with serving(
        responding_with(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
    ) as target:
        with pytest.raises(ServerUnreachable):
            await query_server(target.url, None, None)


async def test_the_error_message_of_a_server_is_reported():
    """One example is a model that is still loading."""
    async with serving(responding_with(refusal("503 No", "engine_unavailable"))) as target:
        with pytest.raises(ServerUnreachable, match=r"503: no <b>room</b>"):
            await request_json(target, "GET", "/v1/models")


async def test_a_truncated_body_is_an_error():
    """The connection ends before the announced length."""
    async with serving(responding_with(b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n{}")) as target:
        with pytest.raises(ServerUnreachable, match="in the middle"):
            await request_json(target, "GET", "/v1/models")


# Whole runs


async def test_a_server_that_goes_away_leaves_failed_requests_and_no_traceback():
    """The first requests are answered, one is cut off, and the others cannot connect."""
    served = 0

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal served
        served += 1
        await read_request(reader)
        raw = chunked(STREAM, 50)
        if served <= 3:
            writer.write(raw)
        elif served == 4:
            writer.write(raw[:150])

    async with serving(handler) as target:
        run_options = given_options("uniform", "--requests", "9", "--rate", "1000", "--max-concurrency", "1")
        traffic = Traffic(
            {"a": TargetServer(target, "m", None, SERVED.ids)}, run_options.key_of, run_options.max_concurrency
        )
        ended: list[Record] = []
        async with asyncio.timeout(HANG_SECONDS):
            await traffic.drive(jobs(run_options, traffic._servers), ended.append)
    assert [one.outcome for one in traffic.records] == 3 * ["done"] + 6 * ["failed"]
    assert ended == traffic.records
    summary = measure.summary(traffic.records, Slo(9, 9), 1.0)["all"]
    assert (summary["requests"], summary["done"], summary["failed"], summary["refused"]) == (9, 3, 6, 0)
    assert summary["not_done"] == {"no answer": 5, "answer cut off": 1}


async def test_stopping_records_requests_in_flight_and_sends_no_more():
    """Ctrl-C cancels the run in this way."""
    started = asyncio.Event()

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(chunked(STREAM, 50)[:200])
        started.set()
        await reader.read()  # until the client disconnects

    async with serving(handler) as target:
        run_options = given_options("uniform", "--requests", "5", "--rate", "1000", "--max-concurrency", "1")
        traffic = Traffic(
            {"a": TargetServer(target, "m", None, SERVED.ids)}, run_options.key_of, run_options.max_concurrency
        )
        driving = asyncio.create_task(traffic.drive(jobs(run_options, traffic._servers), lambda record: None))
        async with asyncio.timeout(HANG_SECONDS):
            await started.wait()
            driving.cancel()
            with pytest.raises(asyncio.CancelledError):
                await driving
    assert [(one.number, one.outcome) for one in traffic.records] == [(0, "stopped")]


async def test_concurrency_is_limited():
    """The server counts concurrent requests under --max-concurrency."""
    now = highest = 0

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal now, highest
        await read_request(reader)
        now += 1
        highest = max(highest, now)
        await asyncio.sleep(0.01)
        now -= 1
        writer.write(chunked(STREAM, 50))

    async with serving(handler) as target:
        run_options = given_options("uniform", "--requests", "12", "--rate", "10000", "--max-concurrency", "3")
        traffic = Traffic(
            {"a": TargetServer(target, "m", None, SERVED.ids)}, run_options.key_of, run_options.max_concurrency
        )
        async with asyncio.timeout(HANG_SECONDS):
            await traffic.drive(jobs(run_options, traffic._servers), lambda record: None)
    assert len(traffic.records) == 12
    assert highest == 3


# Figures and reports


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=50))
def test_percentiles_are_numpy_s(values: list[float]):
    """Maximum, mean and count are reported too."""
    found = measure.spread(values)
    assert found is not None
    for name, quantile in (("p50", 50), ("p90", 90), ("p99", 99)):
        assert found[name] == pytest.approx(np.percentile(values, quantile))
    assert (found["max"], found["n"]) == (max(values), len(values))
    assert found["mean"] == pytest.approx(np.mean(values))


def test_an_empty_list_has_no_percentiles():
    """The result is None, which the report writes as a dash."""
    assert measure.spread([]) is None


@pytest.mark.parametrize("sizes", [[1] * 40, [1, 5, 2, 9, 3, 3]])
def test_a_resample_has_the_quantiles_of_the_groups_that_were_drawn(sizes: list[int]):
    """The quantiles equal numpy's on the same draws."""
    rng = random.Random(5)
    drawn_from = [[rng.random() for _ in range(size)] for size in sizes]
    found = measure.resampled(drawn_from, np.random.default_rng(7))
    again = np.random.default_rng(7)
    for row in found[:50]:
        chosen = again.integers(0, len(sizes), len(sizes))
        sample = np.concatenate([drawn_from[at] for at in chosen])
        np.testing.assert_allclose(row, np.percentile(sample, [50, 99]))


def test_the_interval_of_a_ratio_is_decided_by_its_seed_and_holds_the_truth():
    """B is twice A."""
    rng = np.random.default_rng(1)
    a, b = rng.exponential(1.0, 400)[:, None].tolist(), rng.exponential(2.0, 400)[:, None].tolist()
    found = measure.ratios(a, b, 3)
    assert found == measure.ratios(a, b, 3) != measure.ratios(a, b, 4)
    assert found is not None
    for mark, quantile in (("p50", 50), ("p99", 99)):
        assert found[mark]["ratio"] == pytest.approx(np.percentile(b, quantile) / np.percentile(a, quantile))
        assert found[mark]["low"] < found[mark]["ratio"] < found[mark]["high"]
        assert found[mark]["low"] < 2 < found[mark]["high"]
    assert found["p50"]["high"] - found["p50"]["low"] < found["p99"]["high"] - found["p99"]["low"]
    assert measure.ratios(a, [[]], 3) is None


def test_two_shares_of_one_distribution_seldom_differ(monkeypatch: pytest.MonkeyPatch):
    """About one interval in twenty misses 1 if queued requests are dealt to A and B at random."""
    monkeypatch.setattr(measure, "RESAMPLES", 200)
    rng = random.Random(4)
    waits, wait = [], 0.0
    for _ in range(300):
        wait = max(0.0, wait + rng.expovariate(1.0) - rng.expovariate(0.9))
        waits.append([wait + rng.random()])
    missed = 0
    for seed in range(100):
        sides: tuple[list[list[float]], list[list[float]]] = ([], [])
        for number, values in enumerate(waits):
            sides[goes_to_b(seed, number, 0.5)].append(values)
        found = measure.ratios(*sides, seed)
        assert found is not None
        missed += not found["p50"]["low"] <= 1 <= found["p50"]["high"]
    assert 1 <= missed <= 12


async def test_a_name_is_looked_up_once():
    """Later connections use the address, and the Host header still has the name."""
    heads: list[str] = []

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await read_request(reader))
        writer.write(chunked(STREAM, 50))

    async with serving(handler) as target:
        named = await resolve_address(Target.parse(f"http://localhost:{target.port}"))
        assert named.address == "127.0.0.1"
        assert (await fetch(named)).outcome == "done"
    assert f"Host: localhost:{target.port}" in heads[-1]


def test_values_of_one_request_are_drawn_together():
    """The gaps of an answer are correlated, so treating them as independent would make the interval too narrow."""
    rng = np.random.default_rng(2)
    answers = [[float(mean)] * 50 for mean in rng.exponential(1.0, 40)]
    singly = [[value] for answer in answers for value in answer]
    together, apart = measure.ratios(answers, answers, 0), measure.ratios(singly, singly, 0)
    assert together is not None
    assert apart is not None
    assert together["p50"]["high"] - together["p50"]["low"] > 2 * (apart["p50"]["high"] - apart["p50"]["low"])


def test_figures_count_every_request_once():
    """Requests are counted by outcome with reasons; rates use complete answers, and goodput uses all sent requests."""
    records = [
        record(0, tokens=(0.5, 0.6, 0.7), prompt_tokens=4, completion_tokens=3, time_ms={"queued": 100, "decode": 300}),
        record(1, tokens=(3.0,), ended=3.0, prompt_tokens=4, completion_tokens=1, time_ms={"queued": 300}),
        record(2, outcome="refused", status=429, error="queue_quota_exceeded", ended=0.25, retry_after=4.0),
        record(3, outcome="failed", status=200, error="connection", tokens=(0.5,)),
        record(4, outcome="stopped"),
    ]
    figures = measure.figures(records, 2.0, Slo(ttft=1.0, itl=0.2))
    assert [figures[name] for name in ("requests", "done", "refused", "failed", "stopped")] == [5, 2, 1, 1, 1]
    assert figures["not_done"] == {"429 queue_quota_exceeded": 1, "answer cut off": 1, "stopped": 1}
    assert (figures["output_tokens_per_s"], figures["requests_per_s"]) == (2.0, 1.0)
    assert figures["goodput"] == {"requests_per_s": 0.5, "share": 0.2}
    assert (figures["refusal"]["p50"], figures["retry_after"]["max"]) == (0.25, 4.0)
    assert [figures[name]["n"] for name in ("ttft", "between_events", "between_tokens", "e2e")] == [3, 2, 2, 2]
    assert figures["phases_ms"] == pytest.approx({"queued": 200, "decode": 150, "outside": 2000 - 350})


def test_texts_that_arrive_together_are_one_event():
    """The time between tokens is that between events, divided by the tokens of the second one."""
    answer = record(tokens=(1.0, 1.0003, 1.02, 1.0203, 1.0206, 1.0209, 1.03), completion_tokens=7)
    assert answer.events == [(1.0, 2), (1.02, 4), (1.03, 1)]
    assert answer.between_events == pytest.approx([0.02, 0.01])
    assert answer.between_tokens == pytest.approx([*[0.005] * 4, 0.01])


def test_texts_of_a_fast_server_are_events_of_their_own():
    """Texts less than a millisecond apart, all alike."""
    answer = record(tokens=tuple(1 + 0.0004 * n for n in range(9)), completion_tokens=9)
    assert [event.texts for event in answer.events] == [1] * 9
    assert answer.between_tokens == pytest.approx([0.0004] * 8)


def test_a_long_pause_joins_no_texts():
    """It makes their mean distance longer."""
    answer = record(tokens=(0.0, 0.005, 0.010, 9.0, 9.005), completion_tokens=5)
    assert [event.texts for event in answer.events] == [1] * 5


def test_each_text_has_its_share_of_the_tokens():
    """The usage counts them, except of an answer that was not complete."""
    assert record(tokens=(1.0, 1.3, 1.9), completion_tokens=9).between_tokens == pytest.approx([0.1, 0.2])
    stopped = record(tokens=(1.0, 1.3), outcome="stopped")
    assert stopped.between_tokens == pytest.approx([0.3])


def test_an_answer_is_good_by_its_first_token_and_its_mean_gap():
    """The mean is over tokens as in the server's metrics, not over the chunks in which they arrived."""
    answer = record(tokens=(0.5, 1.5), completion_tokens=11)
    assert answer.is_good(Slo(ttft=0.5, itl=0.1))
    assert not answer.is_good(Slo(ttft=0.4, itl=0.1))
    assert not answer.is_good(Slo(ttft=0.5, itl=0.09))
    assert not record(tokens=(0.5,), outcome="failed").is_good(Slo(9, 9))


def test_a_timeline_loses_nothing():
    """The sums cover all tokens and all request time in flight."""
    rng = random.Random(3)
    records = []
    for number in range(60):
        sent = rng.uniform(0, 9)
        moments = tuple(sorted(rng.uniform(sent, 10) for _ in range(5)))
        records.append(record(number, sent=sent, ended=moments[-1], tokens=moments, completion_tokens=8))
    found = measure.timeline(records, 17, 10.0)
    width = found.edges[1]
    assert sum(found.tokens_per_s) * width == pytest.approx(60 * 8)
    assert sum(found.in_flight) * width == pytest.approx(sum(one.latency for one in records))


@given(st.lists(st.floats(0, 1e4), min_size=1, max_size=600))
def test_a_curve_goes_up_to_one_with_all_its_values_below(values: list[float]):
    """This holds even if the curve has fewer points than values."""
    points = plots.curve(values)
    assert points[-1] == (max(values), 1.0)
    assert all(before <= after for before, after in pairwise(points))
    assert all(sum(value <= at for value in values) >= share * len(values) - 1e-6 for at, share in points)


@given(st.lists(st.floats(0, 1e6) | st.sampled_from([1e-4, 0.00999999, 1.0, 9.999, 10.0, 1000.0]), min_size=1))
def test_a_distribution_is_drawn_within_its_plot(values: list[float]):
    """This holds for all values, including those on the border of a decade."""
    drawn = plots.cdf([plots.Series("x", "x", values)], "x")
    (path,) = re.findall(r'class="line x" d="([^"]*)"', drawn)
    across = [float(x) for x in re.findall(r"[MH]([-\d.naif]+)", path)]
    assert all(plots.LEFT - 0.1 <= x <= plots.WIDTH - plots.RIGHT + 0.1 for x in across)
    assert drawn.count('class="tick"') > 5  # a percentage at each of five lines, and a time


@pytest.mark.parametrize("highest", [1e-9, 0.3, 1, 7, 99, 12_345, 1e12])
def test_ticks_hold_the_highest_value(highest: float):
    """Ticks are few, evenly spaced, and begin at 0."""
    found = plots.ticks(highest)
    assert found[0] == 0
    assert found[-1] >= highest * (1 - 1e-9)
    assert 2 <= len(found) <= 8


def run_of(records: list[Record], servers: int = 1) -> report.Run:
    view = {"url": "http://x", "model": "<i>m</i>", "max_model_len": 64}
    origin = {"when": "2026-01-01"}
    run_options = given_options("mixed", *(["--url-b", "http://y"] if servers > 1 else []))
    names = "ab"[:servers]
    return report.Run(origin, run_options.view, dict.fromkeys(names, view), records, Slo(1.0, 0.1), 0, False)


@pytest.mark.parametrize("servers", [1, 2])
@pytest.mark.parametrize("count", [0, 1, 2, 40])
def test_a_report_can_be_written_for_any_run(tmp_path, servers: int, count: int):
    """Empty and failed runs are covered, server text is escaped, and the page needs no other file."""
    rng = random.Random(count)
    records = [
        record(
            number,
            server="ab"[number % servers],
            tier=rng.choice(measure.TIERS),
            outcome="done" if number % 2 else "refused",
            status=200 if number % 2 else 429,
            error=None if number % 2 else "<script>x</script>",
            tokens=tuple(islice((0.1 * n for n in range(1, 9)), rng.randrange(8))) if number % 2 else (),
            completion_tokens=7,
            time_ms={"queued": 1.0, "<script>": 2.0} if number % 2 else {},
        )
        for number in range(count)
    ]
    summary = write(run_of(records, servers), tmp_path)
    page = (tmp_path / "report.html").read_text()
    assert "<script" not in page
    assert "<i>" not in page
    assert "src=" not in page
    assert "url(" not in page
    assert "@import" not in page
    assert json.loads((tmp_path / "summary.json").read_text())["all"]["requests"] == count
    assert len((tmp_path / "requests.jsonl").read_text().splitlines()) == count
    assert f"of {count} requests" in report.text(summary)
