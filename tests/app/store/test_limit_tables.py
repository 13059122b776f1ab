"""Rate limits and delays for wrong keys over a restart, whatever the wall clock was set to meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import math
import sqlite3
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from app.admission.rate_limits import RateLimits
from app.admission.refused_keys import FREE_ATTEMPTS, MAX_DELAY_SECONDS, RefusedKeys
from app.admission.tenants import Tenant, key_digest
from app.engine_client.client import EngineClient
from app.errors import ApiError
from app.server import create_app
from app.settings import Settings
from app.store import coalesced_table
from app.store.coalesced_table import CoalescedTable
from app.store.limit_tables import RATES, REFUSED_KEYS
from app.store.state_file import StateFile
from engine.config import EngineConfig
from tests.app.engine_client.test_client import CONFIG, fake_engine
from tests.app.routes.test_http import BODY, CHAT, ready
from tests.app.text_models import byte_level
from tests.profiles import examples

ANNA = Tenant(name="anna", digest=key_digest("a"))
CLOCKS = st.floats(-1e9, 1e9)  # seconds by which the wall clock is set: 30 years in both directions


class Process:
    """Limits of one process with the store, and its clocks."""

    def __init__(self, path: Path, wall: float, **limits: int) -> None:
        self.now = 0.0
        self._began = wall
        self.file = StateFile(path)
        self.rates = CoalescedTable(RATES, self.file.writer, lambda: self.wall)
        self.refused = CoalescedTable(REFUSED_KEYS, self.file.writer, lambda: self.wall)
        self.limits = RateLimits(limits, lambda: self.now)
        self.keys = RefusedKeys(lambda: self.now)
        self.rates.follow(self.limits.used)
        self.refused.follow(self.keys.attempts)
        self.limits.restore(self.rates.read())
        self.keys.restore(self.refused.read())
        self.file.writer.start()

    @property
    def wall(self) -> float:
        return self._began + self.now

    def is_refused(self) -> bool:
        try:
            self.limits.check(ANNA)
        except ApiError:
            return True
        return False

    def request(self, tokens: int = 0) -> None:
        self.limits.enter(ANNA, 1, tokens)
        self.limits.leave(ANNA.id, 1, 0)

    def end(self) -> None:
        """Write what has changed, and end."""
        self.rates.changed(ANNA.id)
        self.refused.changed("net")
        self.rates.flush()
        self.refused.flush()
        self.file.close()


async def test_a_restart_does_not_refill_a_limit(tmp_path: Path):
    """The time between the processes counts."""
    first = Process(tmp_path / "s.db", 1000.0, requests_per_minute=60)
    for _ in range(60):
        first.request()
    assert first.is_refused()
    first.end()
    second = Process(tmp_path / "s.db", 1000.0, requests_per_minute=60)
    assert second.is_refused()
    second.end()
    third = Process(tmp_path / "s.db", 1030.0, requests_per_minute=60)
    for _ in range(30):
        assert not third.is_refused()
        third.request()
    assert third.is_refused()
    third.end()


async def test_a_restart_does_not_end_the_delay_of_wrong_keys(tmp_path: Path):
    first = Process(tmp_path / "s.db", 1000.0)
    for _ in range(FREE_ATTEMPTS):
        assert first.keys.count("net") == 0.0
    first.end()
    second = Process(tmp_path / "s.db", 1010.0)
    assert [second.keys.count("net") for _ in range(2)] == [0.1, 0.2]
    second.end()


@given(
    st.integers(1, 10_000),
    st.integers(1, 10_000),
    st.integers(0, 100),
    st.integers(0, 10**9),
    CLOCKS,
    st.integers(1, 3),
)
@hypothesis_settings(max_examples=examples(40))
def test_no_clock_locks_a_tenant_out_for_longer_than_a_minute(
    tmp_path_factory, old: int, new: int, requests: int, tokens: int, shift: float, restarts: int
):
    """The next process may have another limit and any time, and so may those after it."""

    async def run() -> None:
        path = tmp_path_factory.mktemp("limits") / "s.db"
        process = Process(path, 2e9, requests_per_minute=old, tokens_per_minute=old)
        for _ in range(requests):
            process.request(tokens)
        for _ in range(30):
            process.keys.count("net")
        process.end()
        for number in range(restarts):
            process = Process(path, 2e9 + shift * (number + 1), requests_per_minute=new, tokens_per_minute=new)
            assert 0.0 <= process.keys.count("net") <= MAX_DELAY_SECONDS
            assert process.is_refused() is False or process.limits.used(ANNA.id) is not None
            process.now += 60.001
            assert not process.is_refused()
            process.end()

    asyncio.run(run())


def test_a_restarted_server_goes_on_to_refuse_a_tenant(tmp_path: Path):
    """And to delay wrong keys: the second process has the limits of the first."""
    for number in range(2):
        options = Settings(engine=EngineConfig(model="fake"), model_name="fake", requests_per_minute=3, tenants=(ANNA,))
        client, file = EngineClient(CONFIG, fake_engine), StateFile(tmp_path / "s.db")
        app = create_app(options, client, byte_level(), state_file=file)
        with TestClient(app, base_url="http://127.0.0.1:8000") as http:
            ready(http)
            answers = [http.post(CHAT, json=BODY, headers={"Authorization": "Bearer a"}) for _ in range(4)]
            assert [answer.status_code for answer in answers] == [[200, 200, 200, 429], [429] * 4][number]
            http.post(CHAT, json=BODY, headers={"Authorization": "Bearer wrong"})
            attempts = app.state.service.refused_keys._attempts.values()
            assert [count for count, _ in attempts] == [number + 1]


async def test_usage_of_the_server_before_is_added_while_both_serve(tmp_path: Path):
    limits = RateLimits({"requests_per_minute": 10}, lambda: 0.0)
    for _ in range(4):
        limits.enter(ANNA, 1, 0)
        limits.leave(ANNA.id, 1, 0)
    limits.restore([(ANNA.id, 0.0, (5.0, 0.0))])
    assert limits.used(ANNA.id) == (0.0, (9.0, 0.0))
    keys = RefusedKeys(lambda: 100.0)
    keys.count("net")
    keys.restore([("net", 5.0, (FREE_ATTEMPTS - 1.0,)), ("old", 50.0, (3.0,)), ("older", 60.0, (3.0,))])
    assert keys.attempts("net") == (0.0, (float(FREE_ATTEMPTS),))
    assert list(keys._attempts) == ["older", "old", "net"], "the oldest are forgotten first"


async def test_changes_of_a_second_are_one_write_of_a_key(tmp_path: Path):
    """A forgotten key is removed, so that the table is bounded like the memory."""
    file = StateFile(tmp_path / "s.db")
    values = {"a": 1.0, "b": 2.0}
    table = CoalescedTable(REFUSED_KEYS, file.writer)
    table.follow(lambda key: (0.0, (values[key],)) if key in values else None)
    for _ in range(1000):
        table.changed("a")
        table.changed("b")
    assert file.writer.pending == 0
    table.flush()
    assert file.writer.pending == 2
    del values["a"]
    table.changed("a")
    table.flush()
    file.writer.start()
    await asyncio.to_thread(file.close)
    with contextlib.closing(sqlite3.connect(tmp_path / "s.db")) as connection:
        assert connection.execute("SELECT key, attempts FROM refused_key").fetchall() == [("b", 2.0)]


async def test_many_changed_keys_do_not_wait_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Clients with many addresses cannot fill it."""
    monkeypatch.setattr(coalesced_table, "MAX_CHANGED", 10)
    file = StateFile(tmp_path / "s.db")
    table = CoalescedTable(REFUSED_KEYS, file.writer)
    for number in range(25):
        table.changed(str(number))
    assert file.writer.pending == 20
    file.close()


@pytest.mark.parametrize("values", [("x", 1.0), (5.0, "x"), (5.0, -1.0), (5.0, math.inf), (-math.inf, 1.0)])
def test_wrong_and_old_rows_are_left_out_and_removed(tmp_path: Path, values: tuple[object, object]):
    path = tmp_path / "s.db"
    file = StateFile(path)
    with file.writer.connection as connection:
        connection.execute("INSERT INTO refused_key VALUES ('net', ?, ?)", values)
    assert file.refused_keys.read() == []
    file.start()
    file.close()
    with contextlib.closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT count(*) FROM refused_key").fetchone() == (0,)
