"""The README's examples, run as written except for the port."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import requirements
from tests.limits import HANG_SECONDS

ROOT = Path(__file__).resolve().parent.parent.parent
README = (ROOT / "README.md").read_text()


def blocks(language: str, server) -> list[str]:
    """Return the README's code blocks in `language`, with the address of the server under test."""
    host = server.url.removeprefix("http://")
    return [code.replace("127.0.0.1:8000", host) for code in re.findall(rf"```{language}\n(.*?)```", README, re.S)]


def run(command: list[str]) -> str:
    """Return the output of `command`, which must succeed."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_SECONDS, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.model
@requirements.curl
def test_the_curl_example_streams_and_ends(chat_server):
    """The output has events, then [DONE]."""
    (command,) = [code for code in blocks("sh", chat_server) if code.startswith("curl")]
    output = run(["bash", "-c", command])
    assert output.count("data: {") > 3
    assert output.rstrip().endswith("data: [DONE]")


@pytest.mark.model
def test_the_openai_example_prints_an_answer(chat_server):
    """It exits without an error and prints text."""
    (code,) = blocks("python", chat_server)
    assert len(run([sys.executable, "-c", code]).strip()) > 2


def test_every_link_in_the_readme_has_a_target():
    """The links point to files of the tree."""
    targets = [target.split("#")[0] for target in re.findall(r"\]\(([^)]+)\)", README)]
    assert len(targets) > 10 and all((ROOT / target).exists() for target in targets)


def test_the_tree_in_the_readme_is_the_tree():
    """Every top-level folder that the README names exists, and none is missing."""
    named = set(re.findall(r"^    (\w+)/ ", README, re.M)) | set(re.findall(r"^    (models)/demo/", README, re.M))
    there = {path.name for path in ROOT.iterdir() if path.is_dir() and not path.name.startswith((".", "_"))}
    assert named == there - {"build", "dist", "node_modules"}
