"""Server whose drafts come from the own text: `python -m benchmarks.peers.unforced serve MODEL ...`. Part of edits.py.

A grammar that allows one text would draft all of it, and so would an earlier answer to the same request.
"""

from __future__ import annotations

import subprocess
import sys
from typing import Any

from engine import worker
from engine.constraints import forced
from engine.drafting.answers import RecentAnswers

WORKER = "worker"  # argument of the engine process, before those of `engine.worker`


def serve() -> int:
    """Run the command line of `carousel` with engine processes of this module, and return its exit status."""
    from app.__main__ import main as command

    original = subprocess.Popen

    def spawn(arguments: list[str], **kwargs: Any) -> subprocess.Popen[bytes]:
        if arguments[1:3] == ["-m", "engine.worker"]:
            arguments = [arguments[0], "-m", "benchmarks.peers.unforced", WORKER, *arguments[3:]]
        return original(arguments, **kwargs)

    subprocess.Popen = spawn  # type: ignore[assignment, misc]
    return command(sys.argv[1:])


def main() -> int:
    """Run the server, or its engine."""
    if sys.argv[1] != WORKER:
        return serve()
    sys.argv.pop(1)
    forced.MAX_ALLOWED = 0
    RecentAnswers.add = lambda *_: None  # type: ignore[method-assign]
    worker.main()
    return 0


if __name__ == "__main__":
    sys.exit(main())
