"""`carousel bench` against a real server: the command, its exit status, and its files."""

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
from tests.limits import HANG_SECONDS


def bench(*arguments: str, out: Path) -> subprocess.CompletedProcess[str]:
    """Run `carousel bench` to its end; it must not print a traceback."""
    command = [sys.executable, "-m", "app", "bench", *arguments, "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_SECONDS, cwd=ROOT, check=False)
    assert "Traceback" not in done.stderr, done.stderr
    return done


def read_files(out: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the summary and the requests, after checking that the page is complete."""
    page = (out / "report.html").read_text()
    assert page.startswith("<!doctype html>")
    assert page.rstrip().endswith("</html>")
    lines = (out / "requests.jsonl").read_text().splitlines()
    return json.loads((out / "summary.json").read_text()), [json.loads(line) for line in lines]


def test_a_run_writes_a_report_that_agrees_with_its_requests(server: Server, tmp_path: Path):
    """Each answer has the requested number of tokens, and the server's timings."""
    done = bench("uniform", "--requests", "6", "--rate", "20", "--url", server.url, out=tmp_path / "out")
    assert done.returncode == 0, done.stderr
    summary, requests = read_files(tmp_path / "out")
    assert "6 of 6 requests answered" in done.stdout
    assert [request["number"] for request in requests] == list(range(6))
    for request in requests:
        assert (request["outcome"], request["status"], request["server"]) == ("done", 200, "a")
        assert request["prompt_tokens"] == request["requested_prompt"]
        assert request["completion_tokens"] == request["requested_output"]
        assert request["sent"] <= request["tokens"][0] <= request["tokens"][-1] <= request["ended"]
        wall = 1000 * (request["ended"] - request["sent"])
        assert 0 < sum(request["time_ms"].values()) <= wall
    overall = summary["all"]
    assert (overall["requests"], overall["done"], overall["refused"], overall["failed"]) == (6, 6, 0, 0)
    assert overall["output_tokens"] == sum(request["completion_tokens"] for request in requests)
    assert overall["ttft"]["n"] == 6
    assert summary["servers"]["a"]["model"] == "carousel-demo"
    assert (summary["options"]["seed"], summary["options"]["requests"]) == (0, 6)


def test_with_banned_eos_every_token_has_text(server: Server, tmp_path: Path):
    """The lengths are still those of the workload."""
    arguments = ("--requests", "4", "--rate", "50", "--ban-eos", "--seed", "5", "--url", server.url)
    assert bench(*arguments, out=tmp_path).returncode == 0
    summary, requests = read_files(tmp_path)
    assert all(request["completion_tokens"] == request["requested_output"] for request in requests)
    assert summary["all"]["tokens_without_text"] < 0.1 * summary["all"]["output_tokens"]


def test_two_servers_share_the_requests_and_are_compared(server: Server, tmp_path: Path):
    """Both are the same server here, and the seed assigns the requests."""
    arguments = ("mixed", "--requests", "24", "--rate", "60", "--output-tokens", "8", "--seed", "3")
    done = bench(*arguments, "--url", server.url, "--url-b", server.url, "--share-b", "0.4", out=tmp_path)
    assert done.returncode == 0, done.stderr
    summary, requests = read_files(tmp_path)
    of_b = sum(request["server"] == "b" for request in requests)
    assert 0 < of_b < 24
    assert summary["b"]["all"]["requests"] == of_b
    assert summary["a"]["all"]["requests"] + of_b == summary["all"]["requests"] == 24
    assert set(summary["b_over_a"]["all"]) == {"ttft", "between_events", "between_tokens", "e2e"}
    ratio = summary["b_over_a"]["all"]["e2e"]["p50"]
    assert ratio["low"] <= ratio["ratio"] <= ratio["high"]
    assert "B over A" in done.stdout


def test_refusals_of_a_server_are_counted_by_reason(tmp_path: Path):
    """With one slot and a queue of one, most of thirty concurrent requests are refused."""
    small = Server.start("--max-num-seqs", "1", "--max-queue", "1")
    try:
        arguments = ("--requests", "30", "--rate", "5000", "--output-tokens", "60", "--url", small.url)
        done = bench(*arguments, out=tmp_path)
    finally:
        small.stop()
    assert done.returncode == 0, done.stderr
    summary, requests = read_files(tmp_path)
    overall = summary["all"]
    assert overall["done"] + overall["refused"] == 30
    assert overall["not_done"] == {"503 server_full": overall["refused"]}
    assert overall["refused"] == sum(request["status"] == 503 for request in requests) > 0
    assert overall["refusal"]["n"] == overall["retry_after"]["n"] == overall["refused"]


def test_a_server_that_is_killed_leaves_a_report(tmp_path: Path):
    """Earlier requests are answered, the others have failed, and no traceback is printed."""
    killed_server = Server.start()
    command = [sys.executable, "-m", "app", "bench", "--requests", "60", "--rate", "15", "--url", killed_server.url]
    running = subprocess.Popen(
        [*command, "--output-tokens", "16", "--out", str(tmp_path)], cwd=ROOT, stderr=subprocess.PIPE, text=True
    )
    try:
        wait_until_started(tmp_path, running)
        time.sleep(1.5)  # a third of the run
    finally:
        killed_server.process.kill()
        killed_server.process.wait(HANG_SECONDS)
    _, errors = running.communicate(timeout=HANG_SECONDS)
    assert "Traceback" not in errors, errors
    overall = read_files(tmp_path)[0]["all"]
    assert overall["requests"] == 60
    assert overall["failed"] > 0
    assert overall["done"] + overall["failed"] + overall["refused"] == 60


def test_ctrl_c_writes_a_report_of_the_requests_so_far(server: Server, tmp_path: Path):
    """The exit status shows that the run was interrupted."""
    command = [sys.executable, "-m", "app", "bench", "--requests", "5000", "--rate", "30", "--url", server.url]
    running = subprocess.Popen(
        [*command, "--out", str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    wait_until_started(tmp_path, running)
    time.sleep(1)
    running.send_signal(signal.SIGINT)
    output, errors = running.communicate(timeout=HANG_SECONDS)
    assert running.returncode == 130, errors
    assert "Traceback" not in errors
    summary, requests = read_files(tmp_path)
    assert summary["interrupted"]
    assert 0 < summary["all"]["requests"] == len(requests) < 5000
    assert output.startswith("Stopped.")


def test_a_wrong_address_is_reported_in_one_line(server: Server, tmp_path: Path):
    """A page of the server is not its base URL."""
    done = bench("--url", f"{server.url}/engine", out=tmp_path / "out")
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert "404" in done.stderr


def test_a_folder_that_cannot_be_written_is_named_before_anything_is_sent(server: Server, tmp_path: Path):
    """The path is that of a file."""
    (tmp_path / "out").write_text("")
    done = bench("--url", server.url, out=tmp_path / "out")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert str(tmp_path / "out") in done.stderr


def wait_until_started(out: Path, running: subprocess.Popen[str]) -> None:
    """Wait until requests are sent, which is when the file is created."""
    end = time.monotonic() + HANG_SECONDS
    while not (out / "requests.jsonl").exists():
        if running.poll() is not None or time.monotonic() > end:
            pytest.fail("the run did not start")
        time.sleep(0.05)
