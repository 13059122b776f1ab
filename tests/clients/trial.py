"""Trials: run the driver of a client against running servers, and read which features work."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests import chromium
from tests.clients.catalogue import DRIVERS, Client
from tests.clients.environments import install, node
from tests.clients.refusing_proxy import refusing_proxy
from tests.conftest import Server

DRIVER_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of a feature of a client.

    detail: the error, if it does not work. limit: the feature is a known limit, and ok states whether the server
    refuses it by name.
    """

    feature: str
    ok: bool
    detail: str
    limit: bool = False


@dataclass(frozen=True, slots=True)
class Servers:
    """URLs of a server with the demo model, and of one with the scripted model."""

    url: str
    scripted_url: str


@contextmanager
def running_servers() -> Iterator[Servers]:
    """Run both servers for the duration of a block."""
    with ExitStack() as stack:
        server = Server.start("--served-model-name", "demo")
        stack.callback(server.stop)
        scripted = Server.start("--served-model-name", "scripted", command=("tests.clients.scripted_server",))
        stack.callback(scripted.stop)
        yield Servers(server.url, scripted.url)


def try_client(home: Path, client: Client, servers: Servers) -> list[Outcome]:
    """Install a client if needed and return the outcome of each feature, and of `offline`: whether it has tried to
    reach another host. Raises `InstallationFailed`.
    """
    folder = install(home, client)
    with refusing_proxy() as proxy, tempfile.TemporaryDirectory(prefix="carousel-client-") as temporary:
        command = [*_driver_command(home, client, folder), servers.url, servers.scripted_url, *client.arguments]
        environment = _environment(home, folder, Path(temporary)) | proxy.environment
        outcomes = _run_driver(command, environment, Path(temporary))
        targets = sorted({target for target in proxy.targets if not target.startswith(client.tolerated)})
    return [*outcomes, Outcome("offline", not targets, ", ".join(targets))]


def _driver_command(home: Path, client: Client, folder: Path) -> list[str]:
    """Return the command of a driver without its arguments.

    Modules of npm are found from the folder of the importing file, so that JavaScript drivers run as copies.
    """
    if client.driver.endswith(".mjs"):
        for name in ("common.mjs", client.driver):
            shutil.copyfile(DRIVERS / name, folder / name)
        return [str(node(home)), str(folder / client.driver)]
    python = sys.executable if client.is_npm else str(folder / "bin/python")
    return [python, str(DRIVERS / client.driver)]


def _environment(home: Path, folder: Path, temporary: Path) -> dict[str, str]:
    """Return the variables of a driver: an empty home, the programs of its client before others, and a browser."""
    programs = [str(node(home).parent), str(folder / "node_modules/.bin"), str(folder / "bin"), os.environ["PATH"]]
    return {
        "PATH": os.pathsep.join(programs),
        "HOME": str(temporary),
        "TMPDIR": str(temporary),
        "LANG": "C.UTF-8",
        "PYTHONDONTWRITEBYTECODE": "1",
        "CAROUSEL_CHROMIUM": chromium.find() or "",
    }


def _run_driver(command: list[str], environment: dict[str, str], folder: Path) -> list[Outcome]:
    try:
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=DRIVER_SECONDS
        )
    except subprocess.TimeoutExpired as error:
        return [Outcome("driver", False, f"the driver has not ended within {DRIVER_SECONDS:g} s: {error.output!r}")]
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"feature"')]
    outcomes = [Outcome(**json.loads(line)) for line in lines]
    if done.returncode or not outcomes:
        detail = f"the driver ended with {done.returncode}: {done.stderr[-2000:]}"
        outcomes.append(Outcome("driver", False, detail))
    return outcomes
