"""`python -m tests.planted [name ...]`: plant bugs in a copy of the tree, one by one. Exit with 1 if one is not found.

A name selects the bugs that contain it. With SUITE_PROFILE=nightly the tests run with all cases.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.planted.bugs import BUGS, Bug

ROOT = Path(__file__).resolve().parents[2]
PASSED, FAILED = 0, 1  # exit statuses of pytest; others are errors of collection or use


def copy_tree(target: Path) -> None:
    """Copy all files that git does not ignore."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, target / name)


def run_tests(tree: Path, tests: Sequence[str]) -> int:
    """Run tests of a tree until the first failure, and return the exit status of pytest."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-n", "0", "-p", "no:cacheprovider", "--no-header", *tests]
    done = subprocess.run(
        command, cwd=tree, env={**os.environ, "PYTHONPATH": str(tree)}, capture_output=True, text=True, check=False
    )
    lines = done.stdout.splitlines()
    print("    " + (next((line for line in lines if line.startswith("FAILED")), lines[-1]) if lines else done.stderr))
    return done.returncode


def plant(tree: Path, bug: Bug) -> bool:
    """Return whether the tests of a bug fail with it. Raises `ValueError` if its text is not in the file once."""
    file = tree / bug.file
    text = file.read_text()
    if text.count(bug.old) != 1:
        raise ValueError(f"bug {bug.name}: {bug.file} must contain once, not {text.count(bug.old)} times: {bug.old!r}")
    file.write_text(text.replace(bug.old, bug.new))
    try:
        return run_tests(tree, bug.tests) == FAILED
    finally:
        file.write_text(text)


def main(names: Sequence[str]) -> int:
    """Plant the selected bugs and return the exit status."""
    chosen = [bug for bug in BUGS if not names or any(name in bug.name for name in names)]
    if not chosen:
        print(f"no bug is called {' or '.join(names)}; choose from {', '.join(bug.name for bug in BUGS)}")
        return 2
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder)
        copy_tree(tree)
        print("without bugs:", flush=True)
        if run_tests(tree, sorted({test for bug in chosen for test in bug.tests})) != PASSED:
            print("the tests fail without a bug")
            return 1
        missed = []
        for bug in chosen:
            print(f"{bug.name}:", flush=True)
            if not plant(tree, bug):
                missed.append(bug.name)
    print(
        f"{len(chosen) - len(missed)} of {len(chosen)} planted bugs were found" + f"; missed: {missed}" * bool(missed)
    )
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
