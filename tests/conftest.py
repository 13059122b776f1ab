"""Fixtures shared by the whole suite."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import settings

from app.life import ENGINE_ENVIRONMENT
from app.resources import demo_model
from tests import chromium, needs

# As in the engine's own process; it must be set before torch is loaded.
os.environ.update(ENGINE_ENVIRONMENT)

import torch

# Triton decides when it is first imported, and half the suite imports it somewhere (transformers, inductor): whichever
# test comes first, the kernels run in Triton's interpreter where there is no CUDA device.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

# How long an example takes says how busy the machine is.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

# What a shell runs in the background has SIGINT ignored, and so would every server that is started from here.
signal.signal(signal.SIGINT, signal.default_int_handler)

ROOT = Path(__file__).resolve().parent.parent

# What torch and Triton say of a fault, after which a device computes nothing more for the process.
FAULT = re.compile(r"CUDA error|Triton Error \[CUDA\]")


@pytest.hookimpl(trylast=True)  # when whoever collects reports has been sent it
def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Of several processes that share the tests end one whose device is lost: whatever it began now would fail for
    that. Another one takes its place."""
    is_lost = report.failed and FAULT.search(report.longreprtext) is not None
    if is_lost and "PYTEST_XDIST_WORKER" in os.environ and torch.cuda.is_available():
        os._exit(1)


@dataclass
class Server:
    """A real `carousel serve` process."""

    process: subprocess.Popen[str]
    url: str = ""
    log: list[str] = field(default_factory=list)  # without access lines
    access: list[str] = field(default_factory=list)
    _ready: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._follower = threading.Thread(target=self._follow, daemon=True)

    @classmethod
    def start(cls, *options: str, model: Path | None = None, timeout: float = 90.0) -> Server:
        """Start one on a free port and wait until it says it is ready."""
        arguments = [sys.executable, "-m", "app", "serve", *([str(model)] if model else []), "--port", "0", *options]
        process = subprocess.Popen(arguments, cwd=ROOT, stderr=subprocess.PIPE, text=True)
        server = cls(process)
        server._follower.start()
        assert server._ready.wait(timeout) and server.url, "\n".join(server.log)
        return server

    def _follow(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as lines:
            for line in lines:
                (self.access if line.startswith("INFO carousel.access: ") else self.log).append(line.rstrip())
                found = re.match(r"Ready: (\S+)", line)
                if found:
                    self.url = found.group(1)
                    self._ready.set()
        self._ready.set()

    def stop(self) -> int:
        """Ask it to end, wait for it, and return its exit status."""
        self.process.terminate()
        status = self.process.wait(30)
        self._follower.join(10)
        return status


@pytest.fixture(scope="session")
def demo() -> Path:
    """The model that ships."""
    return demo_model()


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """One server with the demo model for all tests that do not change how it runs."""
    running = Server.start("--max-num-seqs", "8")
    yield running
    running.stop()


@pytest.fixture(scope="session")
def slow_server() -> Iterator[Server]:
    """One with the slowest kernels there are: the longest answer takes seconds, and a test can do much meanwhile."""
    running = Server.start("--max-num-seqs", "8", "--kernels", "torch")
    yield running
    running.stop()


@pytest.fixture(scope="module")
def browser():
    """A headless Chromium. For one module at a time: Playwright's loop must not run while asyncio's own tests do."""
    if not chromium.can_drive():
        if needs.is_strict():
            pytest.fail("no Chromium that can be driven, and nothing may be left out")
        pytest.skip("no Chromium that can be driven: the browser tests are left out")
    from playwright.sync_api import sync_playwright

    flags = ["--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync"]
    flags += ["--no-first-run", *(["--no-sandbox"] if os.geteuid() == 0 else [])]
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=chromium.find(), args=flags)
        yield running
        running.close()
