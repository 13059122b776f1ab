"""Fixtures shared by the whole suite."""

from __future__ import annotations

import itertools
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest
from hypothesis import is_hypothesis_test, settings

from app.engine_client.engine_process import ENGINE_ENVIRONMENT_DEFAULTS
from app.resources import demo_model
from app.text.model_folder import ModelNotFound, download_model, find_model
from app.text.packaged_model import DEFAULT_MODEL
from tests import chromium, requirements
from tests.profiles import DEFAULT_EXAMPLES, NIGHTLY, PROFILE, examples

# Match the engine process; the variables must be set before torch is loaded.
os.environ.update(ENGINE_ENVIRONMENT_DEFAULTS)

import torch

from tests.limits import HANG_SECONDS

# Triton reads this variable at its first import, and many modules import it (transformers, inductor). Without a CUDA
# device, kernels must run in Triton's interpreter regardless of which test runs first.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

# The duration of a hypothesis example depends on the load of the machine.
settings.register_profile(PROFILE, deadline=None, max_examples=examples(DEFAULT_EXAMPLES))
settings.load_profile(PROFILE)

# Servers with a port of their own keep their state in a folder of this run.
STATE_FOLDER = tempfile.TemporaryDirectory(prefix="carousel-state-")
os.environ["XDG_STATE_HOME"] = STATE_FOLDER.name
os.environ.pop("STATE_DIRECTORY", None)

# Shells start background jobs with SIGINT ignored, and servers started from here would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

ROOT = Path(__file__).resolve().parent.parent

# Tests that need servers, engine processes, browsers or compilers. All others are quick.
HEAVY_PATHS = [
    ROOT / "tests" / path
    for path in (
        "e2e", "benchmarks", "kernels", "engine/models", "models",
        "app/engine_client/test_client.py", "app/test_llm.py",
    )
]  # fmt: skip
MAX_COVERED_CASES = 4  # of a test with parameters
HEAVY_MARKS = {"slow", "emulated", "device", "model", "clients"}

# Error texts of torch and Triton after which a process can no longer compute on the device.
DEVICE_LOST = re.compile(r"CUDA error|Triton Error \[CUDA\]")


def is_quick(item: pytest.Item) -> bool:
    """Return whether a test needs no server, engine process, browser or compiler."""
    is_heavy = any(item.path.is_relative_to(path) for path in HEAVY_PATHS)
    return not is_heavy and all(mark.name not in HEAVY_MARKS for mark in item.iter_markers())


@pytest.hookimpl(tryfirst=True)  # before tests are selected by their markers
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark quick tests, exclude tests from coverage, and deselect those of the other profile.

    Coverage is measured in quick tests: in the first cases of each, and without random cases, since it multiplies the
    time of a test by three.
    """
    cases: Counter[str] = Counter()
    for item in items:
        function = item.nodeid.partition("[")[0]
        cases[function] += 1
        is_covered = cases[function] <= MAX_COVERED_CASES and not is_hypothesis_test(getattr(item, "obj", None))
        if is_quick(item):
            item.add_marker("quick")
        if not (is_quick(item) and is_covered):
            item.add_marker("no_cover")
    if PROFILE != NIGHTLY:
        config.hook.pytest_deselected(items=[item for item in items if item.get_closest_marker("nightly")])
        items[:] = [item for item in items if not item.get_closest_marker("nightly")]


@pytest.hookimpl(trylast=True)  # after the hook that sends reports to the xdist controller
def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """End an xdist worker that lost its device, since all its further tests would fail. xdist starts a replacement."""
    is_device_lost = report.failed and DEVICE_LOST.search(report.longreprtext) is not None
    if is_device_lost and "PYTEST_XDIST_WORKER" in os.environ and torch.cuda.is_available():
        os._exit(1)


# Program that passes a descriptor to the command after it, as sd_listen_fds(3) expects it.
PASS_SOCKET = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.environ.update(LISTEN_FDS="1", LISTEN_PID=str(os.getpid()))
os.execv(sys.argv[2], sys.argv[2:])
"""


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

    @property
    def engine(self) -> psutil.Process:
        """Return its engine process."""
        children = psutil.Process(self.process.pid).children()
        (engine,) = (child for child in children if "engine.worker" in child.cmdline())
        return engine

    @classmethod
    def start(
        cls,
        *options: str,
        model: Path | str | None = "demo",
        timeout: float = 90.0,
        command: Sequence[str] = ("app", "serve"),
        passed: socket.socket | None = None,
    ) -> Server:
        """Start a server on a free port and wait until it logs that it is ready.

        model: None names none. command: module that serves, and its first arguments. passed: a listening socket, which
        the server gets as from a service manager.
        """
        arguments = [sys.executable, "-m", *command, *([str(model)] if model else []), "--port", "0", *options]
        descriptors = () if passed is None else (passed.fileno(),)
        if passed is not None:
            arguments = [sys.executable, "-c", PASS_SOCKET, str(passed.fileno()), *arguments]
        process = subprocess.Popen(arguments, cwd=ROOT, stderr=subprocess.PIPE, text=True, pass_fds=descriptors)
        server = cls(process)
        server._follower.start()
        assert server._ready.wait(timeout) and server.url, "\n".join(server.log)
        return server

    def _follow(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as lines:
            for line in lines:
                (self.access if line.startswith("INFO carousel.access: ") else self.log).append(line.rstrip())
                match = re.match(r"Ready: (\S+)", line)
                if match:
                    self.url = match.group(1)
                    self._ready.set()
        self._ready.set()

    def assert_no_traceback(self) -> None:
        """Fail with the log from its first traceback on, if it has one."""
        lines = itertools.dropwhile(lambda line: "Traceback" not in line, self.log)
        assert not (found := list(lines)), "\n".join(found)

    def stop(self) -> int:
        """Terminate the server, wait for it and return its exit status."""
        self.process.terminate()
        status = self.process.wait(HANG_SECONDS)
        self._follower.join(HANG_SECONDS)
        return status


@pytest.fixture(scope="session")
def demo() -> Path:
    """Return the folder of the demo model."""
    return demo_model()


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """Yield one server with the demo model, shared by all tests that do not change its state."""
    running = Server.start("--max-num-seqs", "8")
    yield running
    running.stop()


@pytest.fixture(scope="session")
def chat_model() -> Path:
    """Return the GGUF file of the small chat model. The first test that needs it fetches it."""
    try:
        return find_model(DEFAULT_MODEL.name, download_model).path
    except ModelNotFound as error:
        if requirements.is_strict():
            pytest.fail(f"{error}, and CAROUSEL_STRICT forbids skipping tests")
        pytest.skip(f"{error}: its tests are skipped")


@pytest.fixture(scope="session")
def chat_checkpoint(chat_model: Path) -> Iterator[Path]:
    """Yield the folder of a checkpoint with the values of the small chat model, in float32 (540 MB)."""
    from tests.packaged_models import write_checkpoint

    with tempfile.TemporaryDirectory(prefix="carousel-checkpoint-") as folder:
        yield write_checkpoint(chat_model, Path(folder))


@pytest.fixture(scope="session")
def chat_server(chat_model: Path) -> Iterator[Server]:
    """Yield a server as it is without a model on its command line, computing in float32."""
    running = Server.start("--dtype", "float32", "--max-num-seqs", "8", model=None)
    yield running
    running.stop()


@pytest.fixture(scope="session")
def slow_server() -> Iterator[Server]:
    """Yield a server with the slowest kernels; its longest answer takes seconds, so tests can act in the meantime."""
    running = Server.start("--max-num-seqs", "8", "--kernels", "torch")
    yield running
    running.stop()


@pytest.fixture(scope="module")
def browser():
    """Yield a headless Chromium.

    The scope is one module, since Playwright's event loop must not run beside asyncio's tests.
    """
    if not chromium.is_usable():
        if requirements.is_strict():
            pytest.fail("no usable Chromium, and CAROUSEL_STRICT forbids skipping tests")
        pytest.skip("no usable Chromium: browser tests are skipped")
    from playwright.sync_api import sync_playwright

    flags = ["--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync"]
    flags += ["--no-first-run", *(["--no-sandbox"] if os.geteuid() == 0 else [])]
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=chromium.find(), args=flags)
        yield running
        running.close()
