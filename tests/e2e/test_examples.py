"""The programs in examples/, run against a real server as their docstrings describe."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.conftest import Server

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def run(name: str, *arguments: str, stdin: str = "") -> str:
    """Run an example, which must succeed, and return its output."""
    command = [sys.executable, str(EXAMPLES / name), *arguments]
    environment = os.environ | {"PYTHONPATH": str(EXAMPLES.parent)}  # the package may not be installed
    done = subprocess.run(
        command, input=stdin, capture_output=True, text=True, timeout=120, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_terminal_chat_answers_each_line(server: Server):
    """Two questions get two answers, and the program ends with its input."""
    printed = run("terminal_chat.py", "--url", f"{server.url}/v1", stdin="Hello!\nCount from 1 to 5.\n")
    assert "1, 2, 3, 4, 5" in printed and printed.count("> ") == 3


def test_the_bulk_job_completes_every_prompt(server: Server, tmp_path: Path):
    """The results have each prompt once, with its answer."""
    prompts, results = tmp_path / "prompts.txt", tmp_path / "results.jsonl"
    prompts.write_text("Hello!\n\nCount from 1 to 5.\nWhat are pages?\n")
    printed = run("bulk.py", str(prompts), str(results), "--url", f"{server.url}/v1", "--concurrency", "2")
    rows = [json.loads(line) for line in results.read_text().splitlines()]
    assert sorted(row["number"] for row in rows) == [0, 1, 2] and all(row["answer"] for row in rows)
    assert "3 prompts completed" in printed


def test_barging_in_cancels_the_first_answer_and_gets_the_second(server: Server):
    """The first response ends as cancelled, the second as completed."""
    printed = run("barge_in.py", "--url", f"{server.url.replace('http', 'ws')}/v1/realtime")
    assert printed.count("[cancelled]") == 1 and printed.count("[completed]") == 1
    assert printed.index("[cancelled]") < printed.index("1, 2, 3, 4, 5")


def test_the_python_api_completes_and_streams():
    """Without a server, on the bundled model."""
    printed = run("python_api.py", "demo")
    assert printed.count("> ") == 2 and printed.rstrip().endswith("2 texts")


@pytest.fixture
def example_site() -> Iterator[str]:
    """Yield the origin at which the folder of examples is served."""
    handler = functools.partial(SimpleHTTPRequestHandler, directory=str(EXAMPLES))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as site:
        thread = threading.Thread(target=site.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{site.server_port}"
        site.shutdown()
        thread.join()


@pytest.mark.browser
def test_the_page_streams_an_answer_from_another_origin(example_site: str, browser):
    """The page runs in a real browser and uses `--allowed-origins`."""
    running = Server.start("--allowed-origins", example_site)
    page = browser.new_page()
    page.goto(f"{example_site}/stream.html?server={running.url}")
    page.click("button")
    page.wait_for_function("() => document.querySelector('#answer').dataset.done !== undefined")
    assert "1, 2, 3, 4, 5" in page.inner_text("#answer")
    assert page.get_attribute("#answer", "data-done") == "", "the stream ended without an error"
    page.close()
    running.stop()
