"""Actors that run an engine or an API process as their child, and report it to the directory.

An actor lives as long as its process. If either ends, so does the other, and Ray starts the actor anew.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import ray
import tomlkit

from app.ray_launcher.child import ChildProcess
from app.ray_launcher.directory import API, ENGINE, NAMESPACE, REPORT_SECONDS
from app.remote_settings import RayService
from engine.network import Address

DIRECTORY_SECONDS = 60.0  # for the directory to answer when an engine starts
MIN_LIFE_SECONDS = 5.0  # of an actor: one whose process fails at once is not started again before
# For a process to end its requests or pass them on, beyond its own limits of 30 s by default.
STOP_SECONDS = 45.0
EVERY_INTERFACE = ("0.0.0.0", "::")
ENGINE_READY = re.compile(r"is ready on (\S+:\d+)")
API_READY = re.compile(r"Ready: http")


class ProcessActor:
    """Runs a command until `stop`."""

    def __init__(self, kind: str, service: str, name: str, command: list[str], values: dict[str, Any]) -> None:
        """service: name of the service. name: of this actor. values: options, for a file that the command is given."""
        self._kind, self._name = kind, name
        self._directory = ray.get_actor(f"{service}-directory", namespace=NAMESPACE)
        self._host = ray.util.get_node_ip_address()
        self._began = time.monotonic()
        self._is_stopping = False
        self._address = ""  # once it is ready
        self._folder = Path(tempfile.mkdtemp(prefix="carousel-ray-"))  # for its user only
        if kind == ENGINE:
            token = ray.get(self._directory.token.remote(), timeout=DIRECTORY_SECONDS)
            values = values | {"token_file": self._write("token", token), "listen": str(Address(self._host, 0))}
        else:
            cluster = RayService(ray.get_runtime_context().gcs_address, service)
            values = values | {"engines": str(cluster)}
            self._host = self._host if values["host"] in EVERY_INTERFACE else values["host"]
        self._port = values.get("port", 0)
        config = self._write("options.toml", tomlkit.dumps(values))
        program = [sys.executable, "-m", "app", *command, "--config", config]
        self._child = ChildProcess(program, self._read_line, self._on_end)
        threading.Thread(target=self._report, name="report", daemon=True).start()

    def process_id(self) -> int:
        """Return the ID of the actor's own process."""
        return os.getpid()

    def stop(self) -> None:
        """Let the process end with its requests, or pass them on, and wait until it has ended."""
        self._is_stopping = True
        self._directory.remove.remote(self._name)
        self._child.stop(STOP_SECONDS)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _write(self, name: str, text: str) -> str:
        path = self._folder / name
        path.write_text(text)
        path.chmod(0o600)
        return str(path)

    def _read_line(self, line: str) -> None:
        _log(line)
        if self._address:
            return
        if self._kind == ENGINE and (found := ENGINE_READY.search(line)):
            self._address = found[1]
            # It has read its files. An API process reads its options again when its keys change.
            shutil.rmtree(self._folder, ignore_errors=True)
        elif self._kind == API and API_READY.search(line):
            self._address = str(Address(self._host, self._port))

    def _report(self) -> None:
        while not self._is_stopping:
            if self._address:
                self._directory.report.remote(self._kind, self._name, self._address)
            time.sleep(REPORT_SECONDS)

    def _on_end(self, status: int) -> None:
        if self._is_stopping:
            return
        _log(f"the process ended with status {status}; the actor ends too, and is started again")
        self._directory.remove.remote(self._name)
        shutil.rmtree(self._folder, ignore_errors=True)
        time.sleep(max(0.0, self._began + MIN_LIFE_SECONDS - time.monotonic()))
        os._exit(1)


def _log(line: str) -> None:
    """Write a line to Ray's log of this actor."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
