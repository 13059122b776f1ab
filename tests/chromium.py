"""Chromium lookup and installation for the browser tests.

Run as a module, it looks for Chromium and otherwise tries to install Debian's package. If there is none afterwards, it
prints a warning; with CAROUSEL_STRICT=1 it also exits with 1.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

from tests.requirements import is_strict

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def find() -> str | None:
    """Return the path of a Chromium from CAROUSEL_CHROMIUM or the PATH, or None."""
    configured = os.environ.get("CAROUSEL_CHROMIUM")
    if configured:
        return configured if os.access(configured, os.X_OK) else None
    return next((path for name in PROGRAMS if (path := shutil.which(name))), None)


def is_usable() -> bool:
    """Return whether there is a Chromium and Playwright's driver runs (its shared libraries are installed)."""
    version = [sys.executable, "-m", "playwright", "--version"]
    return find() is not None and subprocess.run(version, capture_output=True, check=False).returncode == 0


def install() -> bool:
    """Install Debian's packages, if this is a Debian and the user is root.

    Return whether Chromium is usable afterwards.
    """
    if shutil.which("apt-get") is None or os.geteuid() != 0:
        return False
    print("No usable Chromium found: installing Debian's package ...", flush=True)
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    packages = ("chromium", "libatomic1")
    for command in (["update", "-qq"], ["install", "-y", "-qq", "--no-install-recommends", *packages]):
        done = subprocess.run(["apt-get", *command], env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            print(done.stderr[-2000:], file=sys.stderr)
            return False
    return is_usable()


def main() -> int:
    """Return exit status 0 if the browser tests can run or may be skipped, else 1."""
    if is_usable() or install():
        return 0
    line = "!" * 100
    print(
        f"{line}\nNo usable Chromium was found or installed: THE BROWSER TESTS ARE SKIPPED.\n"
        f"Install one (Debian: apt-get install chromium libatomic1) or name one in CAROUSEL_CHROMIUM.\n{line}",
        file=sys.stderr,
    )
    return 1 if is_strict() else 0


if __name__ == "__main__":
    sys.exit(main())
