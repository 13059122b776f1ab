"""Usage rows for billing: each is written exactly once despite file errors, and sums are exact."""

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
from app.admission.tenants import Tenant, key_digest
from app.cli.usage import Prices, Sums, decimal, read
from app.observe.metering import APPLICATION_ID, SCHEMA_VERSION, Metering, MeteringError, Row, connect
from tests.app.routes.test_http import BODY, CHAT, make, post_late, ready
from tests.conftest import ROOT
from tests.limits import HANG_SECONDS


def row(number: int, **fields) -> Row:
    usual = Row(f"{number:024x}", 1_700_000_000.0 + number, "anna", "flex", "m", "stop", 10, 4, 5, 0.25, 0.5, 4)
    return usual._replace(**fields)


def rows_of(path: Path) -> list[Row]:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        return [Row(*values) for values in connection.execute(f"SELECT {', '.join(Row._fields)} FROM usage")]


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait until `condition` returns true, at most about 10 s."""
    for _ in range(2000):
        if condition():
            return
        time.sleep(0.005)
    raise AssertionError("it never was so")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "usage.db"


@pytest.fixture
def create_metering(path: Path):
    """Yield a function that creates and starts a `Metering`, and close all of them afterwards."""
    with contextlib.ExitStack() as stack:

        def create(**options) -> Metering:
            metering = Metering(path, busy_seconds=0.01, **options)
            metering.start()
            stack.callback(metering.close)
            return metering

        yield create


# Rows -----------------------------------------------------------------------------------------------------------------


def test_every_row_arrives_once_in_the_end(create_metering, path: Path):
    """The rows exceed one commit and come from several threads, and one is recorded twice."""
    metering = create_metering()
    rows = [row(number) for number in range(5000)]
    threads = [
        threading.Thread(target=lambda part=part: [metering.record(one) for one in rows[part::4]]) for part in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    metering.record(rows[7])
    metering.close()
    metering.close()
    assert sorted(rows_of(path)) == rows
    assert (metering.waiting, metering.lost) == (0, 0)


def test_other_processes_read_rows_while_the_server_runs(create_metering, path: Path):
    """A second process reads committed rows while the first one runs."""
    metering = create_metering()
    metering.record(row(1))
    wait_until(lambda: metering.waiting == 0)
    command = [sys.executable, "-m", "app", "usage", str(path), "--format", "json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=HANG_SECONDS, check=True)
    assert json.loads(done.stdout)["total"]["output_tokens"] == 5
    metering.record(row(2))
    metering.close()
    assert len(rows_of(path)) == 2


def test_an_existing_file_is_appended_to(create_metering, path: Path):
    """The rows of the next server are appended."""
    for number in range(3):
        metering = create_metering()
        metering.record(row(number))
        metering.close()
    assert len(rows_of(path)) == 3


def test_a_locked_file_delays_rows_and_nothing_else(create_metering, path: Path, caplog, monkeypatch):
    """Rows wait in memory with one line in the log, and are written when the lock is released."""
    tries = []

    def counting_connect(file: Path, busy_seconds: float) -> sqlite3.Connection:
        tries.append(file)
        return connect(file, busy_seconds)

    monkeypatch.setattr("app.store.writer.RETRY_SECONDS", 0.01)
    metering = create_metering(connect=counting_connect)
    with contextlib.closing(sqlite3.connect(path)) as other:
        other.execute("BEGIN EXCLUSIVE")
        metering.record(row(1))
        metering.record(row(2))
        wait_until(lambda: len(tries) > 5)
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


def test_a_full_disk_loses_no_row_while_they_fit_in_memory(path: Path, caplog):
    """SQLite's own error is logged once, and rows beyond the bound are counted as lost."""
    full = threading.Event()
    full.set()

    def connect_to_small_disk(file: Path, busy_seconds: float) -> sqlite3.Connection:
        connection = connect(file, busy_seconds)
        if full.is_set():
            connection.execute("PRAGMA max_page_count = 1")  # SQLite keeps the existing pages and adds no more
        return connection

    metering = Metering(path, most_waiting=300, connect=connect_to_small_disk)
    metering.start()
    for number in range(400):
        metering.record(row(number, tenant="t" * 1000))
    wait_until(lambda: bool(caplog.records))
    assert "full" in caplog.records[0].getMessage()
    assert (metering.waiting, metering.lost) == (300, 100)
    full.clear()
    metering.close()
    assert len(rows_of(path)) == 300
    assert (metering.waiting, metering.lost) == (0, 100)


def test_rows_that_cannot_be_written_at_shutdown_are_reported_as_lost(create_metering, path: Path, caplog):
    """The shutdown is not delayed for ever."""
    metering = create_metering()
    with contextlib.closing(sqlite3.connect(path)) as other:
        other.execute("BEGIN EXCLUSIVE")
        metering.record(row(1))
        metering.close()
    assert metering.lost == 1
    assert "1 rows are lost" in caplog.records[-1].getMessage()


def test_a_file_that_was_moved_is_created_anew(create_metering, path: Path):
    """New rows are not written to the moved file."""
    metering = create_metering()
    metering.record(row(1))
    wait_until(lambda: metering.waiting == 0)
    moved = path.rename(path.with_name("old.db"))
    metering.record(row(2))
    metering.close()
    assert rows_of(moved) == [row(1)]
    assert rows_of(path) == [row(2)]


def test_an_unexpected_error_does_not_end_the_thread(path: Path):
    """The rows wait and are written later."""
    errors = [OverflowError("made up")]

    def fail_once(file: Path, busy_seconds: float) -> sqlite3.Connection:
        if len(connected) == 1 and errors:
            raise errors.pop()
        connected.append(file)
        return connect(file, busy_seconds)

    connected: list[Path] = []
    metering = Metering(path, connect=fail_once)
    metering.start()
    metering.record(row(1))
    wait_until(lambda: not errors)
    metering.close()
    assert rows_of(path) == [row(1)]


# Files that are refused -----------------------------------------------------------------------------------------------


def write_text_file(path: Path) -> None:
    path.write_text("not a database at all, but long enough to look like one" * 20)


def create_foreign_table(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE recipes (name)")


def create_newer_version(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")


def test_a_file_is_read_in_a_read_only_folder(create_metering, path: Path, monkeypatch):
    """An example is a copy on a read-only medium, where SQLite would create a file beside it."""
    metering = create_metering()
    metering.record(row(1))
    metering.close()
    connect = sqlite3.connect

    def connect_to_read_only(address: str, **options):
        if "mode=ro" in address:
            raise sqlite3.OperationalError("unable to open database file")
        return connect(address, **options)

    monkeypatch.setattr(sqlite3, "connect", connect_to_read_only)
    assert sum(sums.requests for sums in read(path, ("tenant",)).values()) == 1
    path.with_name(f"{path.name}-wal").touch()  # another process is writing
    with pytest.raises(MeteringError, match="unable to open"):
        read(path, ("tenant",))


def test_a_special_name_of_sqlite_is_a_file(tmp_path: Path, monkeypatch):
    """SQLite has special names that are no files."""
    monkeypatch.chdir(tmp_path)
    metering = Metering(Path(":memory:"))
    metering.start()
    metering.record(row(1))
    metering.close()
    assert len(rows_of(tmp_path / ":memory:")) == 1


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (write_text_file, "not a database"),
        (create_foreign_table, "another application"),
        (create_newer_version, f"version {SCHEMA_VERSION + 1}"),
        (Path.mkdir, "unable to open"),
    ],
)
def test_a_foreign_file_is_refused_and_not_changed(path: Path, damage, expected: str, capsys):
    """The server and the command refuse it with one line that names it."""
    damage(path)
    before = path.read_bytes() if path.is_file() else None
    with pytest.raises(MeteringError, match=expected) as refused:
        Metering(path)
    assert str(refused.value).startswith(f"metering: {path}: ")
    assert (path.read_bytes() if path.is_file() else None) == before
    assert main(["usage", str(path)]) == 1
    assert str(path) in capsys.readouterr().err


def test_the_server_does_not_start_with_such_a_file(path: Path):
    """The status is 2 and one line names the option, before anything is loaded."""
    create_foreign_table(path)
    command = [sys.executable, "-m", "app", "serve", "demo", "--port", "0", "--metering", str(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=HANG_SECONDS, check=False)
    assert (done.returncode, done.stderr) == (
        2,
        f"carousel: metering: {path}: it is a database of another application\n",
    )


# From a request to a row ----------------------------------------------------------------------------------------------

ANNA = Tenant(name="anna", digest=key_digest("a"))
NIGHT = Tenant(name="night", digest=key_digest("n"), tiers=("flex",))
KEYS = {"anna": "a", "night": "n"}


def test_rows_sum_to_the_usage_blocks(path: Path):
    """The sums match by tenant and tier, for streams and whole responses, several choices and cached prompts."""
    reported: dict[tuple[str, ...], list[int]] = {}
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
            sums = reported.setdefault((tenant.name, body["service_tier"]), [0, 0, 0, 0])
            cached = usage["prompt_tokens_details"]["cached_tokens"]
            for column, amount in enumerate((1, usage["prompt_tokens"], cached, usage["completion_tokens"])):
                sums[column] += amount
            assert number >= 0
    groups = read(path, ("tenant", "tier"))
    written = {
        key: [sums.requests, sums.input_tokens, sums.cached_tokens, sums.output_tokens] for key, sums in groups.items()
    }
    assert written == reported
    assert any(sums[2] for sums in reported.values()), "no prompt was cached, so cached tokens are not tested"


def test_a_row_has_the_outcome_and_the_slot_time_of_a_request(path: Path):
    """One request ends by length, and one that never had a slot has an error and no tokens."""
    with make(metering=str(path), price_per_hour=3600.0) as client:
        ready(client).post(CHAT, json=BODY)
        assert post_late(client, {**BODY, "messages": [{"role": "user", "content": "never heard before"}]}) == 504
        metrics = client.get("/metrics").text
    ok, failed = sorted(rows_of(path), key=lambda one: one.ended_at)
    assert (ok.outcome, ok.tenant, ok.tier, ok.model, ok.slots, ok.output_tokens) == (
        "length", "anybody", "default", "fake", 4, 3,
    )  # fmt: skip
    assert 0 < ok.slot_seconds <= ok.wall_seconds
    assert (failed.outcome, failed.input_tokens, failed.output_tokens, failed.slot_seconds) == ("error", 0, 0, 0.0)
    cost = next(line for line in metrics.splitlines() if line.startswith("carousel:cost_total{"))
    assert float(cost.split()[-1]) == pytest.approx(ok.slot_seconds / 4, abs=1e-6)  # 3600 an hour: 1 a second, 4 slots


def test_requests_are_served_while_the_file_is_locked(path: Path):
    """The rows are written in the end."""
    with make(metering=str(path)) as client:
        ready(client)
        with contextlib.closing(sqlite3.connect(path)) as other:
            other.execute("BEGIN EXCLUSIVE")
            for _ in range(3):
                assert client.post(CHAT, json=BODY).status_code == 200
            lines = client.get("/metrics").text.splitlines()
            assert 'carousel:metering_rows_waiting{model_name="fake"} 3.0' in lines
            assert 'carousel:metering_rows_lost_total{model_name="fake"} 0.0' in lines
            other.rollback()
    assert len(rows_of(path)) == 3


def test_without_the_option_nothing_is_recorded(tmp_path: Path):
    """There is no file, no metric, and SQLite is not imported."""
    with make() as client:
        ready(client).post(CHAT, json=BODY)
        assert "metering" not in client.get("/metrics").text
    code = (
        "import sys, app.cli.serve, app.__main__; sys.exit('sqlite3' in sys.modules or 'app.cli.usage' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False, timeout=HANG_SECONDS).returncode == 0


# Sums -----------------------------------------------------------------------------------------------------------------


@given(
    st.lists(
        st.tuples(st.integers(0, 10**9), st.integers(0, 10**6), st.sampled_from([1, 3, 7, 32])), min_size=1, max_size=30
    ),
    st.decimals(0, 1000, places=4),
)
def test_cost_is_the_exact_sum_over_requests(tmp_path_factory, requests, price):
    """The sum is exact to the last digit in any order, since no float is summed."""
    path = tmp_path_factory.mktemp("usage") / "usage.db"
    with contextlib.closing(connect(path, 1.0)) as connection, connection:
        for number, (micros, tokens, slots) in enumerate(requests):
            one = row(number, slot_seconds=micros / 1e6, input_tokens=tokens, cached_tokens=tokens // 3, slots=slots)
            connection.execute(f"INSERT INTO usage VALUES ({', '.join('?' * len(one))})", one)
    price = Fraction(price)
    expected = sum(
        Fraction(micros, 10**6) / slots * price / 3600 + Fraction(tokens - tokens // 3, 10**6) * 3 + 5 * price / 10**6
        for micros, tokens, slots in requests
    )
    (sums,) = read(path, ("tenant",)).values()
    assert sums.cost(Prices(per_hour=price, input=Fraction(3), output=price)) == expected


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
    """Write rows of two tenants, two tiers and two days."""
    day = 86_400
    with contextlib.closing(connect(path, 1.0)) as connection, connection:
        for one in (
            row(1, ended_at=10 * day - 0.5, slot_seconds=1800.0),
            row(2, ended_at=10 * day, slot_seconds=1800.0, tier="priority"),
            row(3, ended_at=10.5 * day, slot_seconds=7200.0, tenant="bert, the second", outcome="abort"),
        ):
            connection.execute(f"INSERT INTO usage VALUES ({', '.join('?' * len(one))})", one)
    return path


def usage_output(capsys, *arguments: str) -> str:
    assert main(["usage", *arguments]) == 0
    return capsys.readouterr().out


def test_the_table_has_a_line_for_each_and_a_total(ledger: Path, capsys):
    """The cost is shown if there is a price: half an hour in one of four slots, at 8 an hour, costs 1."""
    lines = usage_output(capsys, str(ledger), "--price-per-hour", "8").splitlines()
    assert [line.split()[0] for line in lines] == ["tenant", "anna", "anna", "bert,", "total"]
    assert [line.split()[-1] for line in lines] == ["cost", "1.000000", "1.000000", "4.000000", "6.000000"]
    assert "cost" not in usage_output(capsys, str(ledger))


def test_csv_and_json_have_the_same_figures(ledger: Path, capsys):
    """Names with commas are preserved, and cached tokens have their own price."""
    prices = ["--price-input", "1000", "--price-cached", "100", "--price-output", "10000"]
    table = list(
        csv.DictReader(io.StringIO(usage_output(capsys, str(ledger), "--format", "csv", "--by", "tenant", *prices)))
    )
    assert [(line["tenant"], line["requests"], line["cost"]) for line in table] == [
        ("anna", "2", "0.112800"),  # 2 * (6 * 0.001 + 4 * 0.0001 + 5 * 0.01)
        ("bert, the second", "1", "0.056400"),
    ]
    report = json.loads(
        usage_output(capsys, str(ledger), "--format", "json", "--by", "outcome", "--price-input", "1000")
    )
    assert [(line["outcome"], line["requests"]) for line in report["rows"]] == [("abort", 1), ("stop", 2)]
    assert report["total"]["cost"] == "0.030000"  # cached tokens have the input price by default


@pytest.mark.parametrize(("form", "name"), [("table", "b?rt"), ("csv", "bärt"), ("json", "bärt")])
def test_a_terminal_without_umlauts_gets_a_readable_table(ledger: Path, form: str, name: str):
    """Formats for programs are UTF-8 regardless of the terminal."""
    with contextlib.closing(sqlite3.connect(ledger)) as connection, connection:
        connection.execute("UPDATE usage SET tenant = 'bärt'")
    command = [sys.executable, "-m", "app", "usage", str(ledger), "--format", form]
    ran = subprocess.run(command, capture_output=True, env=os.environ | {"PYTHONIOENCODING": "ascii"}, check=False)
    assert name in ran.stdout.decode(), ran.stderr


@pytest.mark.parametrize("streams", ["| head -1", ">&-"])
def test_a_closed_pipe_causes_no_traceback(ledger: Path, streams: str):
    """There are more rows than a pipe can hold."""
    with contextlib.closing(sqlite3.connect(ledger)) as connection, connection:
        for number in range(20, 3000):
            values = row(number)
            connection.execute(f"INSERT INTO usage VALUES ({', '.join('?' * len(values))})", values)
    command = f"{sys.executable} -m app usage {ledger} --by request {streams}"
    ran = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.stderr == ""


@pytest.fixture
def tokyo(monkeypatch):
    """Set the local time zone to nine hours ahead of UTC."""
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
    """Days are in UTC too, for any time zone of the machine."""
    report = json.loads(usage_output(capsys, str(ledger), "--format", "json", "--by", "day", *arguments))
    assert {line["day"]: line["requests"] for line in report["rows"]} == requests


@pytest.mark.parametrize(
    "arguments",
    [["--by", "colour"], ["--by", ""], ["--by", "tier,tier"], ["--since", "soon"], ["--price-per-hour", "nan"]],
)
def test_a_wrong_option_is_named(ledger: Path, capsys, arguments: list[str]):
    """The status is 2, as for every invalid command line."""
    with pytest.raises(SystemExit) as ended:
        main(["usage", str(ledger), *arguments])
    assert ended.value.code == 2
    assert arguments[0] in capsys.readouterr().err


def test_a_missing_file_is_not_created(tmp_path: Path, capsys):
    """A mistyped name is an error."""
    missing = tmp_path / "none.db"
    assert main(["usage", str(missing)]) == 1
    assert "no such file" in capsys.readouterr().err
    assert not missing.exists()
