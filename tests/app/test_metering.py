"""Rows to bill from: all of them, once, whatever the file does; and sums that are exact."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import logging
import os
import random
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.__main__ import main
from app.metering import APPLICATION, VERSION, Metering, MeteringRefused, Row, connect
from app.tenants import Tenant, key_digest
from app.usage import Prices, Sums, decimal, read
from tests.app.test_http import ASK, CHAT, make, ready
from tests.conftest import ROOT


def row(number: int, **fields) -> Row:
    usual = Row(f"{number:024x}", 1_700_000_000.0 + number, "anna", "flex", "m", "stop", 10, 4, 5, 0.25, 0.5, 4)
    return usual._replace(**fields)


def rows_of(path: Path) -> list[Row]:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        return [Row(*values) for values in connection.execute(f"SELECT {', '.join(Row._fields)} FROM usage")]


def until(is_so: Callable[[], bool]) -> None:
    """Wait for it; fails after a long while."""
    for _ in range(2000):
        if is_so():
            return
        time.sleep(0.005)
    raise AssertionError("it never was so")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "usage.db"


@pytest.fixture
def opened(path: Path):
    """Makes meters and closes them."""
    with contextlib.ExitStack() as stack:

        def make_one(**options) -> Metering:
            metering = Metering(path, busy_seconds=0.01, **options)
            metering.start()
            stack.callback(metering.close)
            return metering

        yield make_one


# Rows -----------------------------------------------------------------------------------------------------------------


def test_every_row_arrives_once_in_the_end(opened, path: Path):
    """More than a commit takes, from several threads, with one said twice."""
    metering = opened()
    wanted = [row(number) for number in range(5000)]
    threads = [
        threading.Thread(target=lambda part=part: [metering.record(one) for one in wanted[part::4]])
        for part in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    metering.record(wanted[7])
    metering.close()
    metering.close()
    assert sorted(rows_of(path)) == wanted
    assert (metering.waiting, metering.lost) == (0, 0)


def test_rows_are_there_for_others_while_the_server_runs(opened, path: Path):
    """A second process sees what was committed, without waiting for the first to end."""
    metering = opened()
    metering.record(row(1))
    until(lambda: metering.waiting == 0)
    command = [sys.executable, "-m", "app", "usage", str(path), "--format", "json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    assert json.loads(done.stdout)["total"]["output_tokens"] == 5
    metering.record(row(2))
    metering.close()
    assert len(rows_of(path)) == 2


def test_a_file_is_gone_on_with(opened, path: Path):
    """The next server's rows join the last one's."""
    for number in range(3):
        metering = opened()
        metering.record(row(number))
        metering.close()
    assert len(rows_of(path)) == 3


def test_a_locked_file_delays_rows_and_nothing_else(opened, path: Path, caplog, monkeypatch):
    """They wait in memory, one line says so however often it is tried, and they are written when the lock goes."""
    tries = []

    def counted(file: Path, busy_seconds: float) -> sqlite3.Connection:
        tries.append(file)
        return connect(file, busy_seconds)

    monkeypatch.setattr("app.metering.RETRY_SECONDS", 0.01)
    metering = opened(connect=counted)
    with contextlib.closing(sqlite3.connect(path)) as other:
        other.execute("BEGIN EXCLUSIVE")
        metering.record(row(1))
        metering.record(row(2))
        until(lambda: len(tries) > 5)
        assert metering.waiting == 2
        other.rollback()
    metering.close()
    assert len(rows_of(path)) == 2
    first = caplog.records[0]
    assert first.levelno == logging.ERROR
    assert "2 rows are pending" in first.getMessage()
    assert "locked" in first.getMessage()
    assert "written again" in caplog.records[-1].getMessage()
    assert len(caplog.records) == 2


def test_a_full_disk_costs_no_row_while_there_is_room_in_memory(path: Path, caplog):
    """SQLite's own error, until there is space again; rows beyond the bound are counted as lost."""
    full = threading.Event()
    full.set()

    def on_a_small_disk(file: Path, busy_seconds: float) -> sqlite3.Connection:
        connection = connect(file, busy_seconds)
        if full.is_set():
            connection.execute("PRAGMA max_page_count = 1")  # SQLite takes the pages there are, and no more
        return connection

    metering = Metering(path, most_waiting=300, connect=on_a_small_disk)
    metering.start()
    for number in range(400):
        metering.record(row(number, tenant="t" * 1000))
    until(lambda: bool(caplog.records))
    assert "full" in caplog.records[0].getMessage()
    assert (metering.waiting, metering.lost) == (300, 100)
    full.clear()
    metering.close()
    assert len(rows_of(path)) == 300
    assert (metering.waiting, metering.lost) == (0, 100)


def test_rows_that_cannot_be_written_at_the_end_are_named_as_lost(opened, path: Path, caplog):
    """The end is not put off for ever."""
    metering = opened()
    with contextlib.closing(sqlite3.connect(path)) as other:
        other.execute("BEGIN EXCLUSIVE")
        metering.record(row(1))
        metering.close()
    assert metering.lost == 1
    assert "1 rows are lost" in caplog.records[-1].getMessage()


def test_a_file_that_was_moved_away_is_begun_anew(opened, path: Path):
    """Rows do not follow it to where nobody looks."""
    metering = opened()
    metering.record(row(1))
    until(lambda: metering.waiting == 0)
    moved = path.rename(path.with_name("old.db"))
    metering.record(row(2))
    metering.close()
    assert rows_of(moved) == [row(1)]
    assert rows_of(path) == [row(2)]


def test_trouble_of_a_kind_that_nobody_thought_of_does_not_end_the_thread(path: Path):
    """Rows wait, and go on."""
    wrong = [OverflowError("made up")]

    def odd(file: Path, busy_seconds: float) -> sqlite3.Connection:
        if len(made) == 1 and wrong:
            raise wrong.pop()
        made.append(file)
        return connect(file, busy_seconds)

    made: list[Path] = []
    metering = Metering(path, connect=odd)
    metering.start()
    metering.record(row(1))
    until(lambda: not wrong)
    metering.close()
    assert rows_of(path) == [row(1)]


# Files that are refused -----------------------------------------------------------------------------------------------


def a_text(path: Path) -> None:
    path.write_text("not a database at all, but long enough to look like one" * 20)


def a_foreign_table(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE recipes (name)")


def a_newer_one(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA application_id = {APPLICATION}")
        connection.execute(f"PRAGMA user_version = {VERSION + 1}")


def test_a_file_is_read_where_nothing_may_be_written(opened, path: Path, monkeypatch):
    """Such as a copy on a medium for reading: SQLite itself would put a file beside it."""
    metering = opened()
    metering.record(row(1))
    metering.close()
    connect = sqlite3.connect

    def forbidden(address: str, **options):
        if "mode=ro" in address:
            raise sqlite3.OperationalError("unable to open database file")
        return connect(address, **options)

    monkeypatch.setattr(sqlite3, "connect", forbidden)
    assert sum(sums.requests for sums in read(path, ("tenant",)).values()) == 1
    path.with_name(f"{path.name}-wal").touch()  # somebody writes
    with pytest.raises(MeteringRefused, match="unable to open"):
        read(path, ("tenant",))


def test_whatever_a_file_is_called_it_is_a_file(tmp_path: Path, monkeypatch):
    """SQLite has names for what is none."""
    monkeypatch.chdir(tmp_path)
    metering = Metering(Path(":memory:"))
    metering.start()
    metering.record(row(1))
    metering.close()
    assert len(rows_of(tmp_path / ":memory:")) == 1


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (a_text, "not a database"),
        (a_foreign_table, "another application"),
        (a_newer_one, f"version {VERSION + 1}"),
        (Path.mkdir, "unable to open"),
    ],
)
def test_a_file_that_is_not_ours_is_refused_and_left_alone(path: Path, damage, says: str, capsys):
    """By the server and by the command, with a line that names it."""
    damage(path)
    before = path.read_bytes() if path.is_file() else None
    with pytest.raises(MeteringRefused, match=says) as refused:
        Metering(path)
    assert str(refused.value).startswith(f"metering: {path}: ")
    assert (path.read_bytes() if path.is_file() else None) == before
    assert main(["usage", str(path)]) == 1
    assert str(path) in capsys.readouterr().err


def test_the_server_does_not_start_with_such_a_file(path: Path):
    """Status 2 and one line that names the option, before anything is loaded."""
    a_foreign_table(path)
    command = [sys.executable, "-m", "app", "serve", "--port", "0", "--metering", str(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (
        2,
        f"carousel: metering: {path}: it is a database of another application\n",
    )


# From a request to a row ----------------------------------------------------------------------------------------------

ANNA = Tenant(name="anna", digest=key_digest("a"))
NIGHT = Tenant(name="night", digest=key_digest("n"), tiers=("flex",))
KEYS = {"anna": "a", "night": "n"}


def test_rows_sum_to_what_usage_blocks_said(path: Path):
    """By tenant and tier, streamed and whole, with several choices and with cached prompts."""
    said: dict[tuple[str, ...], list[int]] = {}
    draw = random.Random(5)
    with make(tenants=(ANNA, NIGHT), metering=str(path), public_metrics=True) as client:
        ready(client)
        for number in range(24):
            tenant = draw.choice([ANNA, NIGHT])
            body = {"max_tokens": draw.randrange(1, 9), "n": draw.choice([1, 1, 2]), "stream": draw.random() < 0.5}
            body["messages"] = [{"role": "user", "content": "the same words " * draw.randrange(9)}]
            body["service_tier"] = draw.choice(tenant.tiers)
            if body["stream"]:
                body["stream_options"] = {"include_usage": True}
            answer = client.post(CHAT, json=body, headers={"Authorization": f"Bearer {KEYS[tenant.name]}"})
            assert answer.status_code == 200, answer.text
            if body["stream"]:
                blocks = [line[6:] for line in answer.text.splitlines() if line.startswith("data: {")]
                usage = next(found for block in blocks if (found := json.loads(block).get("usage")))
            else:
                usage = answer.json()["usage"]
            sums = said.setdefault((tenant.name, body["service_tier"]), [0, 0, 0, 0])
            cached = usage["prompt_tokens_details"]["cached_tokens"]
            for place, much in enumerate((1, usage["prompt_tokens"], cached, usage["completion_tokens"])):
                sums[place] += much
            assert number >= 0
    groups = read(path, ("tenant", "tier"))
    written = {
        key: [sums.requests, sums.input_tokens, sums.cached_tokens, sums.output_tokens] for key, sums in groups.items()
    }
    assert written == said
    assert any(sums[2] for sums in said.values()), "nothing was cached: the test says less than it should"


def test_a_row_says_how_a_request_ended_and_what_its_slot_cost(path: Path):
    """Length, and an error of one that never had a slot: nothing was read for it."""
    with make(metering=str(path), price_per_hour=3600.0) as client:
        ready(client).post(CHAT, json=ASK)
        late = {**ASK, "messages": [{"role": "user", "content": "never heard before"}], "deadline_ms": 1}
        assert client.post(CHAT, json=late).status_code == 504
        metrics = client.get("/metrics").text
    ok, failed = sorted(rows_of(path), key=lambda one: one.ended_at)
    assert (ok.outcome, ok.tenant, ok.tier, ok.model, ok.slots, ok.output_tokens) == (
        "length", "anybody", "default", "fake", 4, 3,
    )  # fmt: skip
    assert 0 < ok.slot_seconds <= ok.wall_seconds
    assert (failed.outcome, failed.input_tokens, failed.output_tokens, failed.slot_seconds) == ("error", 0, 0, 0.0)
    cost = next(line for line in metrics.splitlines() if line.startswith("carousel:cost_total{"))
    assert float(cost.split()[-1]) == pytest.approx(ok.slot_seconds / 4, abs=1e-6)  # 3600 an hour: 1 a second, 4 slots


def test_while_the_file_is_locked_requests_are_served_and_metrics_tell(path: Path):
    """The rows are there in the end."""
    with make(metering=str(path)) as client:
        ready(client)
        with contextlib.closing(sqlite3.connect(path)) as other:
            other.execute("BEGIN EXCLUSIVE")
            for _ in range(3):
                assert client.post(CHAT, json=ASK).status_code == 200
            lines = client.get("/metrics").text.splitlines()
            assert 'carousel:metering_rows_waiting{model_name="fake"} 3.0' in lines
            assert 'carousel:metering_rows_lost_total{model_name="fake"} 0.0' in lines
            other.rollback()
    assert len(rows_of(path)) == 3


def test_without_the_option_nothing_is_kept(tmp_path: Path):
    """No file, no metrics of it, no SQLite."""
    with make() as client:
        ready(client).post(CHAT, json=ASK)
        assert "metering" not in client.get("/metrics").text
    code = "import sys, app.launch, app.__main__; sys.exit('sqlite3' in sys.modules or 'app.usage' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False, timeout=60).returncode == 0


# Sums -----------------------------------------------------------------------------------------------------------------


@given(
    st.lists(
        st.tuples(st.integers(0, 10**9), st.integers(0, 10**6), st.sampled_from([1, 3, 7, 32])), min_size=1, max_size=30
    ),
    st.decimals(0, 1000, places=4),
)
def test_cost_is_the_exact_sum_of_each_request_s(tmp_path_factory, requests, price):
    """To the last digit, in whatever order they come: no float is summed."""
    path = tmp_path_factory.mktemp("usage") / "usage.db"
    with contextlib.closing(connect(path, 1.0)) as connection, connection:
        for number, (micros, tokens, slots) in enumerate(requests):
            one = row(number, slot_seconds=micros / 1e6, input_tokens=tokens, cached_tokens=tokens // 3, slots=slots)
            connection.execute(f"INSERT INTO usage VALUES ({', '.join('?' * len(one))})", one)
    price = Fraction(price)
    wanted = sum(
        Fraction(micros, 10**6) / slots * price / 3600 + Fraction(tokens - tokens // 3, 10**6) * 3 + 5 * price / 10**6
        for micros, tokens, slots in requests
    )
    (sums,) = read(path, ("tenant",)).values()
    assert sums.cost(Prices(per_hour=price, input=Fraction(3), output=price)) == wanted


def test_money_is_rounded_once_and_never_shown_as_a_float():
    """Ten thirds are not ten times a rounded third."""
    assert decimal(Fraction(10, 3)) == Decimal("3.333333")
    assert decimal(Fraction(2**80, 1)) == Decimal(2**80)
    third = Sums(machine_micros=Fraction(3_600_000_000, 3))
    total = Sums()
    for _ in range(3):
        total.add(third)
    assert decimal(total.cost(Prices(per_hour=Fraction(1)))) == Decimal("1.000000")


@pytest.fixture
def ledger(path: Path) -> Path:
    """Two tenants, two tiers, two days."""
    day = 86_400
    with contextlib.closing(connect(path, 1.0)) as connection, connection:
        for one in (
            row(1, ended_at=10 * day - 0.5, slot_seconds=1800.0),
            row(2, ended_at=10 * day, slot_seconds=1800.0, tier="priority"),
            row(3, ended_at=10.5 * day, slot_seconds=7200.0, tenant="bert, the second", outcome="abort"),
        ):
            connection.execute(f"INSERT INTO usage VALUES ({', '.join('?' * len(one))})", one)
    return path


def said(capsys, *arguments: str) -> str:
    assert main(["usage", *arguments]) == 0
    return capsys.readouterr().out


def test_the_table_has_a_line_for_each_and_a_total(ledger: Path, capsys):
    """With a cost where there is a price: half an hour in one slot of four, at 8 an hour, is 1."""
    lines = said(capsys, str(ledger), "--price-per-hour", "8").splitlines()
    assert [line.split()[0] for line in lines] == ["tenant", "anna", "anna", "bert,", "total"]
    assert [line.split()[-1] for line in lines] == ["cost", "1.000000", "1.000000", "4.000000", "6.000000"]
    assert "cost" not in said(capsys, str(ledger))


def test_the_same_as_csv_and_as_json(ledger: Path, capsys):
    """Names with commas survive; prices of tokens count cached ones at their own."""
    prices = ["--price-input", "1000", "--price-cached", "100", "--price-output", "10000"]
    table = list(csv.DictReader(io.StringIO(said(capsys, str(ledger), "--format", "csv", "--by", "tenant", *prices))))
    assert [(line["tenant"], line["requests"], line["cost"]) for line in table] == [
        ("anna", "2", "0.112800"),  # 2 * (6 * 0.001 + 4 * 0.0001 + 5 * 0.01)
        ("bert, the second", "1", "0.056400"),
    ]
    whole = json.loads(said(capsys, str(ledger), "--format", "json", "--by", "outcome", "--price-input", "1000"))
    assert [(line["outcome"], line["requests"]) for line in whole["rows"]] == [("abort", 1), ("stop", 2)]
    assert whole["total"]["cost"] == "0.030000"  # cached ones at the same price, as nothing else was said


@pytest.mark.parametrize(("form", "name"), [("table", "b?rt"), ("csv", "bärt"), ("json", "bärt")])
def test_a_terminal_that_knows_no_umlauts_gets_a_table_all_the_same(ledger: Path, form: str, name: str):
    """What programs read is UTF-8 wherever it goes."""
    with contextlib.closing(sqlite3.connect(ledger)) as connection, connection:
        connection.execute("UPDATE usage SET tenant = 'bärt'")
    command = [sys.executable, "-m", "app", "usage", str(ledger), "--format", form]
    ran = subprocess.run(command, capture_output=True, env=os.environ | {"PYTHONIOENCODING": "ascii"}, check=False)
    assert name in ran.stdout.decode(), ran.stderr


@pytest.mark.parametrize("streams", ["| head -1", ">&-"])
def test_whoever_has_read_enough_is_shown_no_traceback(ledger: Path, streams: str):
    """As many rows as a pipe cannot hold."""
    with contextlib.closing(sqlite3.connect(ledger)) as connection, connection:
        for number in range(20, 3000):
            values = row(number)
            connection.execute(f"INSERT INTO usage VALUES ({', '.join('?' * len(values))})", values)
    command = f"{sys.executable} -m app usage {ledger} --by request {streams}"
    ran = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.stderr == ""


@pytest.fixture
def tokyo(monkeypatch):
    """A machine whose clock on the wall is nine hours ahead."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "JST-9")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.parametrize(
    ("arguments", "requests"),
    [
        ([], {"1970-01-10": 1, "1970-01-11": 2}),
        (["--since", "1970-01-11"], {"1970-01-11": 2}),
        (["--until", "1970-01-11"], {"1970-01-10": 1}),
        (["--since", "1970-01-11T00:00:01", "--until", "1970-01-12"], {"1970-01-11": 1}),
        (["--since", "1970-01-11T01:00:00+01:00"], {"1970-01-11": 2}),
        (["--since", "2000-01-01"], {}),
    ],
)
def test_a_span_begins_with_since_and_ends_before_until_in_utc(ledger: Path, capsys, tokyo, arguments, requests):
    """Days as well, wherever the machine stands."""
    whole = json.loads(said(capsys, str(ledger), "--format", "json", "--by", "day", *arguments))
    assert {line["day"]: line["requests"] for line in whole["rows"]} == requests


@pytest.mark.parametrize(
    "arguments",
    [["--by", "colour"], ["--by", ""], ["--by", "tier,tier"], ["--since", "soon"], ["--price-per-hour", "nan"]],
)
def test_a_wrong_option_is_named(ledger: Path, capsys, arguments: list[str]):
    """Status 2, as for every command line that is wrong."""
    with pytest.raises(SystemExit) as ended:
        main(["usage", str(ledger), *arguments])
    assert ended.value.code == 2
    assert arguments[0] in capsys.readouterr().err


def test_a_file_that_is_not_there_is_not_made(tmp_path: Path, capsys):
    """Whoever mistypes a name is told."""
    missing = tmp_path / "none.db"
    assert main(["usage", str(missing)]) == 1
    assert "no such file" in capsys.readouterr().err
    assert not missing.exists()
