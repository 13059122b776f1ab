"""The README's examples, run as they are written (but for the port)."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import needs

ROOT = Path(__file__).resolve().parent.parent.parent
README = (ROOT / "README.md").read_text()


def blocks(language: str, server) -> list[str]:
    """The README's code blocks in `language`, with the address of the server under test."""
    host = server.url.removeprefix("http://")
    return [code.replace("127.0.0.1:8000", host) for code in re.findall(rf"```{language}\n(.*?)```", README, re.S)]


def run(command: list[str]) -> str:
    """Output of `command`, which must succeed."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@needs.curl
def test_the_curl_example_streams_and_ends(server):
    """Events, then [DONE]."""
    (command,) = [code for code in blocks("sh", server) if code.startswith("curl")]
    output = run(["bash", "-c", command])
    assert output.count("data: {") > 3
    assert output.rstrip().endswith("data: [DONE]")


@pytest.mark.parametrize("which", [0, 1], ids=["openai-python", "WebSocket"])
def test_a_python_example_prints_an_answer(server, which: int):
    """It runs to its end and says something."""
    assert len(run([sys.executable, "-c", blocks("python", server)[which]]).strip()) > 2


@pytest.mark.browser
def test_the_event_source_example_collects_an_answer(server, browser):
    """In a real browser, on the server's own page."""
    (code,) = blocks("js", server)
    page = browser.new_page()
    page.goto(f"{server.url}/engine")
    before = page.title()
    page.evaluate(f"async () => {{ {code} globalThis.example = source; }}")
    page.wait_for_function("() => globalThis.example.readyState === EventSource.CLOSED")
    assert len(page.title()) > len(before)
    page.close()


def test_the_tree_in_the_readme_is_the_tree():
    """Every top-level folder that the README names exists, and none is left out."""
    named = set(re.findall(r"^    (\w+)/ ", README, re.M)) | set(re.findall(r"^    (models)/demo/", README, re.M))
    there = {path.name for path in ROOT.iterdir() if path.is_dir() and not path.name.startswith((".", "_"))}
    assert named == there - {"build", "dist"}
