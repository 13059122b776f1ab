"""Two engines behind one server, flooded by one tenant while another has fewer requests."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from engine.host import num_cores
from tests.conftest import Server
from tests.e2e.test_replicas import SLOTS, both_ready
from tests.limits import HANG_SECONDS

pytestmark = pytest.mark.skipif(num_cores() < 2, reason="two engines need two cores")

KEYS = '[tenants.calm]\nkey = "key-calm"\n\n[tenants.flood]\nkey = "key-flood"\n'
FLOOD, CALM, ANSWERS = 24, 8, 8  # callers of each tenant, and answers of each calm one


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    keys = tmp_path / "keys.toml"
    keys.touch(0o600)
    keys.write_text(KEYS)
    options = ("--replicas", "2", "--max-num-seqs", str(SLOTS), "--kernels", "torch", "--device", "cpu")
    running = Server.start(*options, "--keys-file", str(keys))
    both_ready(running)
    yield running
    running.stop()


def ask(server: Server, tenant: str, number: int) -> None:
    """Get one answer of 40 tokens to a prompt of its own."""
    body = {"model": "carousel-demo", "prompt": f"{tenant} {number}", "max_tokens": 40, "ignore_eos": True}
    headers = {"Authorization": f"Bearer key-{tenant}"}
    httpx.post(f"{server.url}/v1/completions", json=body, headers=headers, timeout=HANG_SECONDS).raise_for_status()


def test_a_tenant_with_a_quarter_of_the_requests_gets_nearly_its_half_of_both_engines(server: Server):
    """Its requests are divided between the engines by its own queues, as tenants take turns in each."""
    has_ended = threading.Event()
    flooded: list[int] = []
    calmed: list[int] = []
    at_first_end: list[tuple[int, int]] = []

    def flood(caller: int) -> None:
        number = caller
        while not has_ended.is_set():
            ask(server, "flood", number)
            flooded.append(number)
            number += FLOOD

    def be_calm(caller: int) -> None:
        for number in range(ANSWERS):
            ask(server, "calm", ANSWERS * caller + number)
            calmed.append(number)
        at_first_end.append((len(calmed), len(flooded)))

    with ThreadPoolExecutor(FLOOD + CALM) as pool:
        floods = [pool.submit(flood, caller) for caller in range(FLOOD)]
        while len(flooded) < 2 * SLOTS:
            has_ended.wait(0.02)
        before = len(flooded)
        for calm in [pool.submit(be_calm, caller) for caller in range(CALM)]:
            calm.result()
        has_ended.set()
        for each in floods:
            each.result()
    calm_answers, flood_answers = at_first_end[0]  # while all of its callers asked
    share = calm_answers / (calm_answers + flood_answers - before)
    assert share > 1 / 3  # 0.25 without turns; on a busy machine its callers are late for some
