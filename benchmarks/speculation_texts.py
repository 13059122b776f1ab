"""Prompts and answers that `benchmarks.speculation` measures with.

Edits are those of this repository's history, so it needs a clone with its commits.
"""

from __future__ import annotations

import difflib
import json
import subprocess
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
EDITS = (  # commits that changed a few lines of a file
    ("9a0208e2", "app/cli/acceptor.py"),
    ("1792d796", "engine/prefixes.py"),
    ("9fdeb3d5", "engine/scheduling/kept_pages.py"),
)
UNCHANGED = ("9a0208e2", "engine/canary.py")  # 399 tokens of SmolLM2
WRONG_CHARACTERS = 2000  # of the licence, 397 tokens
CHANGE = "Make the changes that we have spoken about."
PEOPLE = "Anna is 30 and lives in Rome, Bert is 41 and lives in Oslo, Carl is 22 and lives in Bonn."
CONTEXT_LINES = 2  # around the changed ones of a search-and-replace block


class Case(NamedTuple):
    """A request. answer: the text that the model is made to say; None: its own. prediction: of the client."""

    prompt: str
    answer: str | None = None
    prediction: str = ""


def cases() -> dict[str, list[Case]]:
    """Return requests by kind of answer. Raises `CalledProcessError` without the repository's history."""
    files = [(name, _version(f"{commit}~1", name), _version(commit, name)) for commit, name in EDITS]
    quoted = files[0][1].splitlines()
    unchanged = _version(*UNCHANGED)
    chats = ("Tell me about owls.", "Why is the sky blue?", "What is a good plan for a week in Rome?")
    wrong = (ROOT / "LICENSE").read_text()[:WRONG_CHARACTERS]
    return {
        "edit, whole file": [Case(_question(name, old), f"```python\n{new}```\n") for name, old, new in files],
        "edit, search and replace": [Case(_question(name, old), _blocks(name, old, new)) for name, old, new in files],
        "tool calls": [Case(_question(name, old), _calls(name, old, new)) for name, old, new in files],
        "quotes": [Case(_question(EDITS[0][1], files[0][1]), _quotes(quoted))],
        "JSON": [Case(f"Translate into JSON with the fields name, age and city: {PEOPLE}")],
        "repeated text": [
            Case(f"Repeat this text word by word: {PEOPLE} All of them like to read books about the sea.")
        ],
        "chat": [Case(chat) for chat in chats],
        "prediction, right": [Case(CHANGE, unchanged, unchanged)],
        "prediction, wrong": [Case(chat, prediction=wrong) for chat in chats],
    }


def _version(commit: str, name: str) -> str:
    command = ["git", "-C", str(ROOT), "show", f"{commit}:{name}"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def _question(name: str, text: str) -> str:
    return f"This is the file {name}:\n```python\n{text}```\n{CHANGE}"


def _changes(old: str, new: str) -> list[tuple[str, str]]:
    """Return the changed places with the lines around them, before and after."""
    before, after = old.splitlines(keepends=True), new.splitlines(keepends=True)
    groups = difflib.SequenceMatcher(None, before, after, autojunk=False).get_grouped_opcodes(CONTEXT_LINES)
    return [
        ("".join(before[group[0][1] : group[-1][2]]), "".join(after[group[0][3] : group[-1][4]])) for group in groups
    ]


def _blocks(name: str, old: str, new: str) -> str:
    """Return a diff in the form that aider reads."""
    blocks = (
        f"{name}\n```python\n<<<<<<< SEARCH\n{before}=======\n{after}>>>>>>> REPLACE\n```\n"
        for before, after in _changes(old, new)
    )
    return "\n".join(blocks)


def _calls(name: str, old: str, new: str) -> str:
    """Return a call of an editing tool for each change."""
    calls = (
        {"name": "edit_file", "arguments": {"file_path": name, "old_string": before, "new_string": after}}
        for before, after in _changes(old, new)
    )
    return "\n".join(f"<tool_call>\n{json.dumps(call)}\n</tool_call>" for call in calls)


def _quotes(lines: list[str]) -> str:
    """Return an answer that quotes a file, with some words of its own between."""
    parts = [
        "The constants come first. They are these:",
        *lines[14:20],
        "Connections are accepted here, a limited number at a time, as the docstring says:",
        *lines[54:66],
        "When the system has no descriptor left, the acceptor waits for a while:",
        *lines[74:79],
    ]
    return "\n".join(parts) + "\n"
