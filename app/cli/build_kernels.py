"""Compilation of the CPU kernels ahead of the first start, for images. A child process does it, as it imports torch."""

from __future__ import annotations

import subprocess
import sys

from app.child_environment import module_environment
from engine.parent_death import bound_command


def build_kernels() -> int:
    """Compile the kernels into the cache, unless they are there. Returns 0, or 1 after a line with the reason."""
    command = bound_command([sys.executable, "-m", "kernels.cpu"])
    return subprocess.run(command, env=module_environment(), check=False).returncode
