"""Installation of clients, each in a folder outside the tree. Complete installations are reused."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.clients.catalogue import NODE, Client

DEFAULT_HOME = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "carousel/clients"
INSTALL_SECONDS = 1800.0


class InstallationFailed(Exception):
    """A client could not be installed; the message contains the failed command and its output."""


def install(home: Path, client: Client) -> Path:
    """Return the folder of a client's environment, after installing it if needed. Raises `InstallationFailed`."""
    if client.is_npm:
        install_packages(home / "node", (NODE,), is_npm=True)
    return install_packages(home / client.environment, client.packages, is_npm=client.is_npm)


def node(home: Path) -> Path:
    """Return the Node.js of npm's clients, once one of these is installed."""
    return home / "node/node_modules/node/bin/node"


def install_packages(folder: Path, packages: Sequence[str], *, is_npm: bool) -> Path:
    """Install `packages` into `folder`, unless exactly these are there. A folder with others is replaced."""
    installed = folder / "installed.json"
    if installed.exists() and json.loads(installed.read_text()) == list(packages):
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    if is_npm:
        (folder / "package.json").write_text('{"private": true}\n')
        _run("npm", "install", "--silent", "--no-audit", "--no-fund", *packages, folder=folder)
    else:
        _run(sys.executable, "-m", "venv", str(folder), folder=folder)
        _run(str(folder / "bin/pip"), "install", "--quiet", "--disable-pip-version-check", *packages, folder=folder)
    installed.write_text(json.dumps(list(packages)))  # last: the sign of a complete installation
    return folder


def _run(*command: str, folder: Path) -> None:
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=INSTALL_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InstallationFailed(f"{' '.join(command)}: {error}") from error
    if done.returncode:
        output = (done.stderr or done.stdout)[-2000:]
        raise InstallationFailed(f"{' '.join(command)} ended with {done.returncode}: {output}")
