"""Compilation of the CPU kernels ahead of the first start, for images. A child process does it, as it imports torch."""

from __future__ import annotations

import subprocess
import sys

from app.child_environment import module_environment


def build_kernels() -> int:
    """Compile the kernels into the cache, unless they are there. Returns 0, or 1 after a line with the reason."""
    return subprocess.run([sys.executable, "-m", "kernels.cpu"], env=module_environment(), check=False).returncode
