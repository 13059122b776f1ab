"""Peers as child processes that can be frozen, so that only one at a time uses the cores."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]

from benchmarks.peers import environments
from benchmarks.peers.load import LONGEST, Load, Stream, figures, over_http
from benchmarks.peers.model import as_text, word

START = 600.0  # seconds within which a peer must be ready
SLOTS = 32
ROWS = (1, 2, 4, 8, 16, 17, 24, 32)  # row counts at which the bound is measured; 17 rows need a second tile
PREFILL = 512
CONTEXT = 256  # context sizes of streams are multiples of this, in tokens


class PeerFailed(Exception):
    """A peer did not start, or has ended."""


class Process:
    """Child process with its descendants, which are stopped and continued together. Output goes to a log file."""

    def __init__(self, command: list[str], environment: dict[str, str], log: Path, pipes: bool = False) -> None:
        self.log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as errors:
            self._child = subprocess.Popen(
                command,
                env={**os.environ, **environment},
                stdin=subprocess.PIPE if pipes else subprocess.DEVNULL,
                stdout=subprocess.PIPE if pipes else errors,
                stderr=errors,
                text=True,
                start_new_session=True,  # Ctrl-C in the terminal reaches only this benchmark, which stops all peers
            )

    @property
    def pid(self) -> int:
        """Return the process ID."""
        return self._child.pid

    def freeze(self) -> None:
        """Stop the process and its descendants until `thaw`, because some peers busy-wait when idle."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Continue after `freeze`."""
        self._signal(signal.SIGCONT)

    def stop(self) -> None:
        """End the process and its descendants."""
        family = self._family()
        self.thaw()
        self._child.terminate()
        _, alive = psutil.wait_procs(family, timeout=10)
        for process in alive:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self._child.wait()

    def seconds(self) -> float:
        """Return the CPU seconds used so far by the process and its descendants."""
        total = 0.0
        for process in self._family():
            with contextlib.suppress(psutil.NoSuchProcess):
                total += sum(process.cpu_times()[:2])
        return total

    def check(self) -> None:
        """Raise `PeerFailed` if the process has ended."""
        if self._child.poll() is not None:
            raise PeerFailed(f"the process ended with status {self._child.returncode}, see {self.log}")

    def exchange(self, message: dict[str, Any] | None) -> dict[str, Any]:
        """Send a message and return the answer, a line each, for a child with pipes. None: only read a line."""
        assert self._child.stdin is not None and self._child.stdout is not None
        if message is not None:
            self._child.stdin.write(json.dumps(message) + "\n")
            self._child.stdin.flush()
        line = self._child.stdout.readline()
        if not line:
            self._child.wait()
            self.check()
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _family(self) -> list[psutil.Process]:
        # By descent, because a peer's child may have its own session and process group.
        try:
            first = psutil.Process(self._child.pid)
            return [first, *first.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def _signal(self, number: signal.Signals) -> None:
        for process in self._family():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)


class Watch:
    """Measures the CPU time of other processes meanwhile. A peer that spins collapses when it must share a core."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._began = time.perf_counter()
        self._before = self._others()

    def others(self) -> float:
        """Return the average number of cores used by other processes since the start."""
        return max(0.0, (self._others() - self._before) / (time.perf_counter() - self._began))

    def _others(self) -> float:
        """Return the CPU seconds of all processes so far, except this one and the peer."""
        times = psutil.cpu_times()
        own = self._process.seconds() + sum(psutil.Process().cpu_times()[:2])
        return float(sum(times) - times.idle - times.iowait - times.guest - times.guest_nice - own)


class Server:
    """Peer with an HTTP server."""

    def __init__(
        self,
        command: list[str],
        environment: dict[str, str],
        log: Path,
        body: Callable[[list[int], int], dict[str, Any]],
    ) -> None:
        """command: PORT in it is replaced by the port. body: builds a request from a prompt and an output length."""
        self.port = _free_port()
        self._body = body
        self.process = Process([part.replace("PORT", str(self.port)) for part in command], environment, log)

    def wait(self) -> None:
        """Wait until the server is ready. Raises `PeerFailed`."""
        end = time.monotonic() + START
        while time.monotonic() < end:
            self.process.check()
            with contextlib.suppress(urllib.error.URLError, ConnectionError, TimeoutError):
                urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=5).close()
                return
            time.sleep(0.5)
        raise PeerFailed(f"the server was not ready after {START:.0f} seconds, see {self.process.log}")

    def measure(self, load: Load) -> tuple[dict[str, Any], list[list[str]]]:
        """Return figures, and the words of each stream."""
        bodies = [self._body(*pair) for pair in zip(load.prompts, load.lengths, strict=True)]
        streams = over_http(self.port, bodies, load.starts, load.clients)
        return figures(streams), [stream.words for stream in streams]


class StaticBatches:
    """transformers `generate` in a separate process; see static_batches.py."""

    def __init__(self, home: Path, model: Path, log: Path) -> None:
        script = str(Path(__file__).with_name("static_batches.py"))
        command = [str(home / "transformers/bin/python"), script, str(model)]
        self.process = Process(command, OFFLINE, log, pipes=True)

    def wait(self) -> None:
        """Wait until the model is loaded. Raises `PeerFailed`."""
        self.process.exchange(None)

    def measure(self, load: Load) -> tuple[dict[str, Any], list[list[str]]]:
        """Return figures and words. The time is that of the whole batch; only the requested tokens count."""
        answer = self.process.exchange({"prompts": load.prompts, "steps": max(load.lengths)})
        moments = answer["moments"]
        streams = [
            Stream(
                moments[:length], moments[length - 1], length, [word(token).lstrip("Ġ") for token in tokens[:length]]
            )
            for length, tokens in zip(load.lengths, answer["tokens"], strict=True)
        ]
        return figures(streams), [stream.words for stream in streams]


class Bound:
    """Linear layers alone; see bound.py."""

    def __init__(self, model: Path, log: Path) -> None:
        command = [sys.executable, "-m", "benchmarks.peers.bound", str(model)]
        self.process = Process(command, {}, log, pipes=True)

    def wait(self) -> None:
        """Wait until the layers are built. Raises `PeerFailed`."""
        self.process.exchange(None)

    def measure(self, load: Load) -> tuple[dict[str, Any], list[list[str]]]:
        """Return tokens per second if only the linear layers took time, with the fastest candidate.

        All prompts first, then decode steps with one row for each stream that has not ended.
        """
        running = [sum(length > step for length in load.lengths) for step in range(1, max(load.lengths))]
        counts = [rows for rows in ROWS if rows < load.streams] + [load.streams]
        times: dict[str, dict[str, float]] = self.process.exchange({"rows": [*counts, PREFILL]})["milliseconds"]
        fastest = [min(of[str(rows)] for of in times.values()) for rows in counts]
        decode = sum(_between(counts, fastest, rows) for rows in running)
        prefill = load.streams * load.prompt / PREFILL * min(of[str(PREFILL)] for of in times.values())
        return {"tokens_per_s": 1000 * sum(load.lengths) / (decode + prefill), "milliseconds": times}, []


def _between(at: list[int], values: list[float], where: int) -> float:
    """Interpolate linearly; `at` is ascending and `where` lies within its range."""
    for (a, low), (b, high) in zip(zip(at, values, strict=True), zip(at[1:], values[1:], strict=True), strict=False):
        if a <= where <= b:
            return low + (high - low) * (where - a) / (b - a)
    return values[0]


Peer = Server | StaticBatches | Bound
OFFLINE = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}


def _by_tokens(prompt: list[int], length: int) -> dict[str, Any]:
    ask = {"max_tokens": length, "temperature": 0, "ignore_eos": True, "stream": True}
    return {"model": "model", "prompt": prompt, **ask, "stream_options": {"include_usage": True}}


def context(prompt: int) -> int:
    """Return the context size of a stream with a prompt of `prompt` tokens."""
    return -(-(prompt + LONGEST) // CONTEXT) * CONTEXT


def carousel(home: Path, model: Path, log: Path, tokens: int, extra: list[str]) -> Peer:
    """Start this project with default options, except for the prefix cache."""
    options = ["--served-model-name", "model", "--max-num-seqs", str(SLOTS), "--no-enable-prefix-caching"]
    command = [sys.executable, "-m", "app", "serve", str(model), "--port", "PORT", *options, "--store", "none", *extra]
    return Server(command, {}, log, _by_tokens)


def vllm(home: Path, model: Path, log: Path, tokens: int, extra: list[str]) -> Server:
    """Start vLLM's CPU back end in bfloat16, compiled by inductor, its default.

    Uses a thread on every core: with its defaults it was a third slower here, as it seems to reserve a core for its
    scheduler.
    """
    cores = f"0-{(os.cpu_count() or 1) - 1}"
    environment = OFFLINE | {"VLLM_CPU_KVCACHE_SPACE": "2", "VLLM_CPU_OMP_THREADS_BIND": cores}
    options = ["--max-num-seqs", str(SLOTS), "--max-model-len", str(max(2048, tokens)), "--dtype", "bfloat16"]
    entry = [str(home / "vllm/bin/python"), "-m", "vllm.entrypoints.openai.api_server", "--served-model-name", "model"]
    command = [*entry, "--model", str(model), "--port", "PORT", "--no-enable-prefix-caching", *options, *extra]
    return Server(command, environment, log, _by_tokens)


def llama(home: Path, model: Path, log: Path, tokens: int, extra: list[str]) -> Peer:
    """Start llama-server with a slot for each stream, on all cores."""
    file = environments.write_gguf(home, model)
    slots = ["-np", str(SLOTS), "-c", str(SLOTS * tokens), "-t", str(os.cpu_count() or 1), "--cache-ram", "0"]
    command = [str(home / "llama/build/bin/llama-server"), "-m", str(file), "--port", "PORT", *slots, *extra]
    return Server(command, {}, log, lambda prompt, length: _by_tokens(prompt, length) | {"cache_prompt": False})


def transformers(home: Path, model: Path, log: Path, tokens: int, extra: list[str]) -> Peer:
    """Start `transformers serve` with continuous batching and a fixed cache size; the default is 90 % of memory."""
    blocks = str(2 * SLOTS * tokens // CONTEXT)
    options = ["--continuous-batching", "--device", "cpu", "--dtype", "bfloat16", "--cb-num-blocks", blocks]
    program = str(home / "transformers/bin/transformers")
    command = [program, "serve", str(model), "--port", "PORT", *options, "--cb-max-batch-tokens", "2048", *extra]

    def by_text(prompt: list[int], length: int) -> dict[str, Any]:
        # It takes no token IDs and rejects `ignore_eos`; the model never ends an answer, see model.py.
        return {"model": str(model), "prompt": as_text(prompt), "max_tokens": length, "temperature": 0, "stream": True}

    return Server(command, OFFLINE, log, by_text)


def static_batches(home: Path, model: Path, log: Path, tokens: int, extra: list[str]) -> Peer:
    """Start `generate` in static batches of all streams, without HTTP."""
    return StaticBatches(home, model, log)


def bound(home: Path, model: Path, log: Path, tokens: int, extra: list[str]) -> Peer:
    """Start the bound, which is measured like a peer."""
    return Bound(model, log)


# name: (required environment, function that starts the peer for a context size in tokens)
PEERS: dict[str, tuple[str | None, Callable[[Path, Path, Path, int, list[str]], Peer]]] = {
    "carousel": (None, carousel),
    "vllm": ("vllm", vllm),
    "llama-server": ("llama", llama),
    "transformers serve": ("transformers", transformers),
    "transformers generate": ("transformers", static_batches),
    "bound": (None, bound),
}


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port
