"""`carousel bench` against a real server: the command, its exit status, its files."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT, Server


def bench(*arguments: str, out: Path) -> subprocess.CompletedProcess[str]:
    """Run it to its end; it never shows a traceback."""
    command = [sys.executable, "-m", "app", "bench", *arguments, "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=ROOT, check=False)
    assert "Traceback" not in done.stderr, done.stderr
    return done


def files(out: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The summary and the requests; the page is whole."""
    page = (out / "report.html").read_text()
    assert page.startswith("<!doctype html>")
    assert page.rstrip().endswith("</html>")
    lines = (out / "requests.jsonl").read_text().splitlines()
    return json.loads((out / "summary.json").read_text()), [json.loads(line) for line in lines]


def test_a_run_writes_a_report_that_agrees_with_its_requests(server: Server, tmp_path: Path):
    """Each answer has the tokens that were asked for, and the server's account of its time."""
    done = bench("uniform", "--requests", "6", "--rate", "20", "--url", server.url, out=tmp_path / "out")
    assert done.returncode == 0, done.stderr
    told, requests = files(tmp_path / "out")
    assert "6 of 6 requests answered" in done.stdout
    assert [request["number"] for request in requests] == list(range(6))
    for request in requests:
        assert (request["outcome"], request["status"], request["server"]) == ("done", 200, "a")
        assert request["prompt_tokens"] == request["asked_prompt"]
        assert request["completion_tokens"] == request["asked_output"]
        assert request["sent"] <= request["tokens"][0] <= request["tokens"][-1] <= request["ended"]
        wall = 1000 * (request["ended"] - request["sent"])
        assert 0 < sum(request["time_ms"].values()) <= wall
    every = told["all"]
    assert (every["requests"], every["done"], every["refused"], every["failed"]) == (6, 6, 0, 0)
    assert every["output_tokens"] == sum(request["completion_tokens"] for request in requests)
    assert every["ttft"]["n"] == 6
    assert told["servers"]["a"]["model"] == "carousel-demo"
    assert (told["options"]["seed"], told["options"]["requests"]) == (0, 6)


def test_end_of_text_can_be_banned_and_then_every_token_has_text(server: Server, tmp_path: Path):
    """The lengths are those of the workload all the same."""
    arguments = ("--requests", "4", "--rate", "50", "--ban-eos", "--seed", "5", "--url", server.url)
    assert bench(*arguments, out=tmp_path).returncode == 0
    told, requests = files(tmp_path)
    assert all(request["completion_tokens"] == request["asked_output"] for request in requests)
    assert told["all"]["tokens_without_text"] < 0.1 * told["all"]["output_tokens"]


def test_two_servers_share_the_requests_and_are_compared(server: Server, tmp_path: Path):
    """Here both are the same one; who gets which request is decided by the seed."""
    arguments = ("mixed", "--requests", "24", "--rate", "60", "--output-tokens", "8", "--seed", "3")
    done = bench(*arguments, "--url", server.url, "--url-b", server.url, "--share-b", "0.4", out=tmp_path)
    assert done.returncode == 0, done.stderr
    told, requests = files(tmp_path)
    of_b = sum(request["server"] == "b" for request in requests)
    assert 0 < of_b < 24
    assert told["b"]["all"]["requests"] == of_b
    assert told["a"]["all"]["requests"] + of_b == told["all"]["requests"] == 24
    assert set(told["b_over_a"]["all"]) == {"ttft", "itl", "e2e"}
    ratio = told["b_over_a"]["all"]["e2e"]["p50"]
    assert ratio["low"] <= ratio["ratio"] <= ratio["high"]
    assert "B over A" in done.stdout


def test_what_a_server_refuses_is_counted_by_its_reason(tmp_path: Path):
    """One slot, one may wait: of thirty at once most are told to come again."""
    small = Server.start("--max-num-seqs", "1", "--max-queue", "1")
    try:
        arguments = ("--requests", "30", "--rate", "5000", "--output-tokens", "60", "--url", small.url)
        done = bench(*arguments, out=tmp_path)
    finally:
        small.stop()
    assert done.returncode == 0, done.stderr
    told, requests = files(tmp_path)
    every = told["all"]
    assert every["done"] + every["refused"] == 30
    assert every["not_done"] == {"503 server_full": every["refused"]}
    assert every["refused"] == sum(request["status"] == 503 for request in requests) > 0
    assert every["refusal"]["n"] == every["retry_after"]["n"] == every["refused"]


def test_a_server_that_is_killed_leaves_a_report(tmp_path: Path):
    """Its requests have failed; those before were answered; nobody is shown a stack."""
    doomed = Server.start()
    command = [sys.executable, "-m", "app", "bench", "--requests", "60", "--rate", "15", "--url", doomed.url]
    running = subprocess.Popen(
        [*command, "--output-tokens", "16", "--out", str(tmp_path)], cwd=ROOT, stderr=subprocess.PIPE, text=True
    )
    try:
        began(tmp_path, running)
        time.sleep(1.5)  # a third of the run
    finally:
        doomed.process.kill()
        doomed.process.wait(30)
    _, errors = running.communicate(timeout=60)
    assert "Traceback" not in errors, errors
    every = files(tmp_path)[0]["all"]
    assert every["requests"] == 60
    assert every["failed"] > 0
    assert every["done"] + every["failed"] + every["refused"] == 60


def test_ctrl_c_writes_the_report_of_what_was_done(server: Server, tmp_path: Path):
    """And the exit status says that it was stopped."""
    command = [sys.executable, "-m", "app", "bench", "--requests", "5000", "--rate", "30", "--url", server.url]
    running = subprocess.Popen(
        [*command, "--out", str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    began(tmp_path, running)
    time.sleep(1)
    running.send_signal(signal.SIGINT)
    output, errors = running.communicate(timeout=60)
    assert running.returncode == 130, errors
    assert "Traceback" not in errors
    told, requests = files(tmp_path)
    assert told["interrupted"]
    assert 0 < told["all"]["requests"] == len(requests) < 5000
    assert output.startswith("Stopped.")


def test_the_address_of_something_else_is_one_line(server: Server, tmp_path: Path):
    """A page of the server is not the server."""
    done = bench("--url", f"{server.url}/engine", out=tmp_path / "out")
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert "404" in done.stderr


def test_a_folder_that_cannot_be_written_is_named_before_anything_is_sent(server: Server, tmp_path: Path):
    """It is a file."""
    (tmp_path / "out").write_text("")
    done = bench("--url", server.url, out=tmp_path / "out")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert str(tmp_path / "out") in done.stderr


def began(out: Path, running: subprocess.Popen[str]) -> None:
    """Wait until requests are sent: its file is made then."""
    end = time.monotonic() + 60
    while not (out / "requests.jsonl").exists():
        if running.poll() is not None or time.monotonic() > end:
            pytest.fail("it did not begin")
        time.sleep(0.05)
