"""Where the browser tests find a Chromium, and how one is brought when there is none.

Run as a module it looks, and where that fails tries Debian's package. With CAROUSEL_STRICT=1 not finding one is an
error; otherwise it says loudly what will be left out.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

from tests.needs import is_strict

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def find() -> str | None:
    """Path of a Chromium, from CAROUSEL_CHROMIUM or the PATH."""
    named = os.environ.get("CAROUSEL_CHROMIUM")
    if named:
        return named if os.access(named, os.X_OK) else None
    return next((path for name in NAMES if (path := shutil.which(name))), None)


def can_drive() -> bool:
    """Whether there is a Chromium, and Playwright's own program, which drives it, finds what it is linked with."""
    version = [sys.executable, "-m", "playwright", "--version"]
    return find() is not None and subprocess.run(version, capture_output=True, check=False).returncode == 0


def bring() -> bool:
    """Install Debian's packages, if this is a Debian and we may."""
    if shutil.which("apt-get") is None or os.geteuid() != 0:
        return False
    print("No Chromium that can be driven here: installing Debian's package ...", flush=True)
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    packages = ("chromium", "libatomic1")
    for command in (["update", "-qq"], ["install", "-y", "-qq", "--no-install-recommends", *packages]):
        done = subprocess.run(["apt-get", *command], env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            print(done.stderr[-2000:], file=sys.stderr)
            return False
    return can_drive()


def main() -> int:
    """0 when the browser tests can run, or may be left out."""
    if can_drive() or bring():
        return 0
    line = "!" * 100
    print(
        f"{line}\nNo Chromium that can be driven was found or installed: THE BROWSER TESTS ARE LEFT OUT.\n"
        f"Install one (Debian: apt-get install chromium libatomic1) or name one in CAROUSEL_CHROMIUM.\n{line}",
        file=sys.stderr,
    )
    return 1 if is_strict() else 0


if __name__ == "__main__":
    sys.exit(main())
