"""Run commands in parallel in this process group, which ends when standard input ends: `python run_group.py`.

The process that starts this one keeps the other end of that pipe open. However it ends, the pipe closes with it, and
the commands and the processes that they have started are killed. A signal on the death of a parent would reach only
the compiler's driver, and not the compilers that it starts. Imports nothing of this project, so that it starts fast.

Input: a line with a JSON list of commands. Output: a JSON object for each command that has ended: its name, exit status
and standard error. Commands inherit standard output, so that its end means that all of them are gone.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor, as_completed

STANDARD_INPUT = 0


def main() -> None:
    """Run the commands of the first line."""
    line = b""
    while not line.endswith(b"\n"):
        if not (piece := os.read(STANDARD_INPUT, 1 << 16)):
            return
        line += piece
    threading.Thread(target=_end_with_input, daemon=True).start()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for done in as_completed([pool.submit(_run, command) for command in json.loads(line)]):
            sys.stdout.write(json.dumps(done.result()) + "\n")
            sys.stdout.flush()


def _end_with_input() -> None:
    while os.read(STANDARD_INPUT, 1):
        pass
    os.killpg(0, signal.SIGKILL)


def _run(command: list[str]) -> dict[str, str | int]:
    try:
        done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False, stdin=subprocess.DEVNULL)
    except OSError as error:  # such as a limit of processes
        return {"name": command[0], "status": 1, "error": f"error: {error}"}
    return {"name": command[0], "status": done.returncode, "error": done.stderr}


if __name__ == "__main__":
    main()
