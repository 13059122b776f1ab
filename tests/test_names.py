"""Names that were replaced by the field's words stay replaced (docs/decisions/0033)."""

from __future__ import annotations

import io
import keyword
import re
import subprocess
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# Identifiers by the room in which they were. Words that have a technical meaning elsewhere are not listed.
OLD_NAMES = {
    "scheduling": """ByClass load_of tell_end tell_passed_over furnish lacking lone_seconds foresee ran_dry take_memory
        may_make_way movable vacated made_for why_victim riding rode RIDING_SHARE PATIENT owed owes has_claim share_left
        is_due stretch""",
    "execution": """_flying _land _beside drawn_for Drawn Wanted Arriving _in_one_go demanding may_round
        tolerates_neighbours own_pages""",
    "server": """BEAT Lives FRUITLESS Ongoing as_it_stands has_got_on AT_ONCE _Follower Patience _patience keep_unread
        while_present done_for Telling SpokenResponse PLACES FOR_PEOPLE Audit has_come Opened Numbered AnswerFormat Said
        format_for Absent asked_class _our_fault _nobody_reads account_of stream_of NoServer VariableTaken
        CannotCompile felt""",
    "tests": "Mortal mortal",
    "pages": "heal seats thoughts",
}
OLD_FILES = {
    ".py": """books news moves gate pace lead frames life lives following patience presence spoken audit prefix few_rows
        early composed page_lookup both_ends needs""",
    ".h": "beside unit",
    ".cpp": "tiles",
    ".js": "words thoughts heal runs seats",
}
FOREIGN_NAMES = {"import_formats.js": {"thoughts"}}  # fields of the files of other programs
EXCLUDED = re.compile(r"(static|tests)/vendor/|models/")


def tracked_files() -> list[Path]:
    """Return the files of the repository without vendored libraries and models."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False).stdout.split()
    if not listed:
        pytest.skip("needs a git checkout")
    return [ROOT / name for name in listed if not EXCLUDED.match(name)]


def identifiers(file: Path) -> Iterator[tuple[int, str]]:
    """Yield line and text of each word outside comments and, in Python, outside strings."""
    text = file.read_text()
    if file.suffix == ".py":
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.NAME and not keyword.iskeyword(token.string):
                yield token.start[0], token.string
        return
    for number, line in enumerate(text.splitlines(), 1):
        for word in re.findall(r"\w+", line.split("//")[0]):
            yield number, word


def test_no_file_has_a_replaced_name():
    """A file is found by the name that the decision and the documents use."""
    assert [file.name for file in tracked_files() if file.stem in OLD_FILES.get(file.suffix, "").split()] == []


def test_no_identifier_has_a_replaced_name():
    """In Python, C++ and JavaScript."""
    old = {name for names in OLD_NAMES.values() for name in names.split()}
    found = [
        f"{file.relative_to(ROOT)}:{line}: {name}"
        for file in tracked_files()
        if file.suffix in (".py", ".cpp", ".h", ".js") and file != Path(__file__)
        for line, name in identifiers(file)
        if name in old - FOREIGN_NAMES.get(file.name, set())
    ]
    assert found == []
