"""Limits of keys with `carousel serve --api-processes 2`: counted over both processes."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack

import httpx
import pytest

from tests.conftest import Server
from tests.e2e.test_api_processes import OPTIONS, only, processes, wait_until
from tests.e2e.test_journal import CHAT
from tests.limits import HANG_SECONDS

BODY = {"messages": [{"role": "user", "content": "Tell me a story."}], "ignore_eos": True, "stream": True}
SHORT = BODY | {"stream": False, "max_tokens": 1}
KEYS = """
[tenants.two]
key = "key-two"
max_concurrency = 2

[tenants.six]
key = "key-six"
requests_per_minute = 6

[tenants.queue]
key = "key-queue"
max_queue = 1

[tenants.free]
key = "key-free"
"""


@pytest.fixture(scope="module")
def service(tmp_path_factory) -> Iterator[Server]:
    """Yield a service of two API processes and an engine, with a keys file."""
    keys = tmp_path_factory.mktemp("keys") / "keys.toml"
    keys.write_text(KEYS)
    keys.chmod(0o600)
    server = Server.start(*OPTIONS, "--keys-file", str(keys), "--max-num-seqs", "4", "--public-metrics")
    yield server
    assert server.stop() == -signal.SIGTERM
    server.assert_no_traceback()


def key(name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer key-{name}"}


def begin(streams: ExitStack, client: httpx.Client, name: str) -> None:
    """Begin an answer, which goes on until the end of `streams`."""
    answer = streams.enter_context(client.stream("POST", CHAT, json=BODY, headers=key(name)))
    assert answer.status_code == 200
    lines = answer.iter_lines()
    next(lines)
    streams.callback(lines.close)  # type: ignore[attr-defined]


def is_admitted(service: Server, name: str) -> bool:
    """Return whether a request is answered at any process."""
    try:
        return httpx.post(f"{service.url}{CHAT}", json=SHORT, headers=key(name), timeout=HANG_SECONDS).is_success
    except httpx.TransportError:  # its connection was at the process that is killed
        return False


def refused_by_shared_limits(client: httpx.Client, code: str) -> float:
    """Return how many requests all processes have refused with a code because of use in other ones."""
    lines = client.get("/metrics").text.splitlines()
    family = "carousel:requests_refused_by_shared_limits_total{"
    return sum(float(line.split()[-1]) for line in lines if line.startswith(family) and f'"{code}"' in line)


def test_a_key_has_its_concurrency_over_both_processes(service: Server):
    """Two answers, not four; a process that is killed gives back what it had."""
    with only(service, 0) as first, only(service, 1) as second, ExitStack() as streams:
        for client in (first, second):
            begin(streams, client, "two")
        wait_until(lambda: not is_admitted(service, "two"))  # a request may cross the reports
        for _ in range(4):  # at either process, by their own connections
            refusal = httpx.post(f"{service.url}{CHAT}", json=SHORT, headers=key("two"), timeout=HANG_SECONDS)
            assert refusal.status_code == 429
            error = refusal.json()["error"]
            assert error["code"] == "max_concurrency_exceeded" and "over all API processes" in error["message"]
        assert httpx.post(f"{service.url}{CHAT}", json=SHORT, headers=key("free"), timeout=HANG_SECONDS).is_success
        assert refused_by_shared_limits(second, "max_concurrency_exceeded") >= 4
        processes(service, "supervised_api")[0].kill()
        wait_until(lambda: is_admitted(service, "two"))
    wait_until(lambda: len(processes(service, "supervised_api")) == 2)
    wait_until(lambda: httpx.get(f"{service.url}/readyz", timeout=HANG_SECONDS).status_code == 200)


def test_a_key_has_its_requests_per_minute_over_both_processes(service: Server):
    """About six, not twelve: what arrives within a report may exceed it, and ten seconds replenish one."""
    began = time.monotonic()
    with only(service, 0) as first, only(service, 1) as second:
        answers = [client.post(CHAT, json=SHORT, headers=key("six")) for _ in range(12) for client in (first, second)]
        codes = [answer.status_code for answer in answers]
        replenished = (time.monotonic() - began) / 10
        assert 6 <= codes.count(200) <= 8 + replenished, "two in all may cross the reports"
        refused = [answer for answer in answers if answer.status_code == 429]
        assert len(refused) + codes.count(200) == 24
        assert all("6 requests a minute, over all API processes" in answer.text for answer in refused[2:])
        beyond = max(0, codes.count(200) - 6)  # each is replenished too before the next one
        assert 1 <= int(refused[-1].headers["Retry-After"]) <= 10 * (1 + beyond) + 1
        assert refused_by_shared_limits(first, "requests_per_minute_exceeded") > 0


def test_a_key_has_its_queue_over_both_processes(service: Server):
    """One waiting request while all slots are taken, wherever it is."""
    with only(service, 0) as first, only(service, 1) as second:

        def refusal() -> str:
            """Return why a request is refused at any process; one that crosses the reports is given up."""
            with httpx.stream(
                "POST", f"{service.url}{CHAT}", json=BODY, headers=key("queue"), timeout=HANG_SECONDS
            ) as it:
                return it.read().decode() if it.status_code == 429 else ""

        def is_full() -> bool:
            """Take all slots and queue a request; the others may end before it is counted on a busy machine."""
            wait_until(lambda: not refusal())
            with ExitStack() as streams:
                for _ in range(4):
                    client = streams.enter_context(httpx.Client(base_url=service.url, timeout=HANG_SECONDS))
                    begin(streams, client, "free")
                begin(streams, first, "queue")
                return any("1 of 1 requests waiting in all API processes" in refusal() for _ in range(20))

        wait_until(is_full)
        assert refused_by_shared_limits(second, "queue_quota_exceeded") >= 1
