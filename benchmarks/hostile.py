"""Effect of one hostile client on the streams of other clients.

For each kind of hostile client a server is started, of the demo model or, where the vocabulary matters, of the default
model (`carousel fetch`). 16 ordinary chat streams (4 of the default model), a short and a long chat (24 kB; 200 bytes)
again and again, and a health check (20 per second) run in separate processes. One window is undisturbed, the next one
has the hostile client; each ratio compares two successive windows. Against clients that take part of the engine as
well, the first window has an ordinary client with as many answers. The client shares the machine's cores with the
server, so the ratio must be read together with the client's own CPU time (`client_cores`).

    python -m benchmarks.hostile                       # windows of 10 s
    python -m benchmarks.hostile --only pings --seconds 3
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from types import TracebackType
from typing import Any

import psutil  # type: ignore[import-untyped]

from benchmarks.hostile_clients import CASES, HOST
from benchmarks.results import save
from benchmarks.serving import Serving

MAX_SECONDS = 120.0  # per window
SLOTS = 48  # of the server, so that all streams run at once, beside as many hostile ones as may be
WARM_UP_SECONDS, MAX_WARM_UP_SECONDS = 2.0, 60.0
SETTLE_SECONDS = 2.0  # after an attack, before memory is read again
MAX_CLIENT_SECONDS = 30.0  # for a hostile client to end after its window
RSS_SECONDS = 0.05  # interval between readings
LAG = re.compile(r'^carousel:event_loop_lag_seconds_bucket\{(?:.*,)?le="([^"]+)".*\} (\S+)$', re.MULTILINE)
MAX_ITL_RATIO, MAX_TTFT_RATIO, MAX_HEALTH_MS = 1.5, 3.0, 50.0  # limits to pass
MB = 1e6
MAX_GROWTH_MB = 2 * (256 << 20) / MB  # of the API process: twice the default of --max-body-memory
KINDS = ("short", "long")  # of chats


class Child:
    """Process of a benchmark module that answers each input line with a line."""

    def __init__(self, module: str, *arguments: object) -> None:
        self._name = f"benchmarks.{module}"
        command = [sys.executable, "-m", self._name, *map(str, arguments)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def read(self) -> str:
        """Return the next line of its output."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"The process {self._name} ended early.")
        return line

    def ask(self) -> dict[str, Any]:
        """Send a line and return the answer."""
        self.start()
        answer: dict[str, Any] = json.loads(self.read())
        return answer

    def start(self) -> None:
        """Send a line."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def __enter__(self) -> Child:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.process.kill()
        try:
            self.process.communicate(timeout=MAX_CLIENT_SECONDS)
        finally:
            self.process.kill()


class Memory:
    """Context manager that samples the peak resident set of a process."""

    def __init__(self, process: psutil.Process) -> None:
        self._process = process
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample)
        self.peak = 0.0

    def __enter__(self) -> Memory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _sample(self) -> None:
        while True:
            self.peak = max(self.peak, self._process.memory_info().rss / MB)
            if self._ended.wait(RSS_SECONDS):
                return


def lag_counts(metrics: str) -> dict[float, float]:
    """Return the cumulative buckets of the event loop's lag in the text of /metrics."""
    return {float(le): float(count) for le, count in LAG.findall(metrics)}


def lag_bucket(before: dict[float, float], after: dict[float, float], share: float) -> float:
    """Return the upper bound in seconds of the bucket that contains the `share` quantile of the lag."""
    counts = {le: after[le] - before[le] for le in sorted(after)}
    return next(le for le, count in counts.items() if count >= share * counts[float("inf")])


class Watched:
    """Server with the processes that observe it."""

    def __init__(self, server: Serving, streams: Child, chats: Child, health: Child) -> None:
        self.port = server.port
        self._streams, self._chats, self._health = streams, chats, health
        self._process = psutil.Process(server.process.pid)

    @property
    def rss(self) -> float:
        """Return the resident megabytes of the API process."""
        return float(self._process.memory_info().rss / MB)

    def warm_up(self) -> None:
        """Wait until every stream runs, and discard the figures so far. Raises `RuntimeError` after a minute."""
        end = time.monotonic() + MAX_WARM_UP_SECONDS
        while time.monotonic() < end:
            time.sleep(WARM_UP_SECONDS)
            streams = self._observe()["between_tokens_ms"]
            if streams["running"] == streams["streams"]:
                return
        raise RuntimeError("The ordinary streams did not begin.")

    def window(self, seconds: float, client: Child | None = None) -> dict[str, Any]:
        """Return the figures of a window, during which `client`, if given, attacks."""
        counts, used = self._lag_counts(), self._cpu_seconds()
        self._observe()
        with Memory(self._process) as memory:
            began = time.perf_counter()
            if client is not None:
                client.start()
            time.sleep(seconds)
            passed = time.perf_counter() - began
            found = self._observe()
            found["api_cores"] = (self._cpu_seconds() - used) / passed
            found["lag_p99_s"] = lag_bucket(counts, self._lag_counts(), 0.99)
        return {**found, "seconds": passed, "rss_peak_mb": memory.peak}

    def _observe(self) -> dict[str, Any]:
        return {
            "between_tokens_ms": self._streams.ask(),
            "first_token_ms": self._chats.ask(),
            "health_ms": self._health.ask(),
        }

    def _cpu_seconds(self) -> float:
        return float(sum(self._process.cpu_times()[:2]))

    def _lag_counts(self) -> dict[float, float]:
        with urllib.request.urlopen(f"http://{HOST}:{self.port}/metrics", timeout=MAX_CLIENT_SECONDS) as answer:
            return lag_counts(answer.read().decode())


def measure(case: str, seconds: float) -> dict[str, Any]:
    """Start a server and return the figures of an undisturbed window and of one with the hostile client `case`."""
    model, control = CASES[case].model, CASES[case].control
    with (
        tempfile.TemporaryDirectory() as folder,
        Serving(
            *("--host", HOST, "--max-num-seqs", str(SLOTS)),
            *(option.format(folder=folder) for option in CASES[case].options),
            model=str(model),
        ) as server,
        Child("bystanders", "streams", server.port, model) as streams,
        Child("bystanders", "chats", server.port, model) as chats,
        Child("bystanders", "health", server.port) as health,
        Child("hostile_clients", case, server.port, seconds) as client,
        Child("hostile_clients", control or case, server.port, seconds) as ordinary,
    ):
        watched = Watched(server, streams, chats, health)
        client.read()  # wait until it is ready
        ordinary.read()
        watched.warm_up()
        rss_before = watched.rss
        undisturbed = watched.window(seconds, ordinary if control else None)
        ordinary.process.kill()
        attacked = watched.window(seconds, client)
        attack = json.loads(client.read())
        time.sleep(SETTLE_SECONDS)
        return {
            "case": case,
            "client": CASES[case].text,
            "model": model.name,
            "undisturbed": undisturbed,
            "attacked": attacked,
            "between_tokens_p99_ratio": ratio(attacked, undisturbed),
            "first_token_p50_ratios": first_token_ratios(attacked, undisturbed),
            "rss_before_mb": rss_before,
            "rss_after_mb": watched.rss,
            "client_cores": attack["cpu_seconds"] / seconds,
            "outcomes": attack["outcomes"],
        }


def ratio(attacked: dict[str, Any], undisturbed: dict[str, Any]) -> float | None:
    """Return the ratio of the p99 between tokens to the undisturbed one; None if a window had no token."""
    above, below = (window["between_tokens_ms"].get("p99") for window in (attacked, undisturbed))
    return above / below if above and below else None


def first_token_ratios(attacked: dict[str, Any], undisturbed: dict[str, Any]) -> dict[str, float | None]:
    """Return the ratios of the median times to the first token, by kind of chat; None if a window had none."""
    medians = {
        kind: [window["first_token_ms"].get(kind, {}).get("p50") for window in (attacked, undisturbed)]
        for kind in KINDS
    }
    return {kind: above / below if above and below else None for kind, (above, below) in medians.items()}


def late_tokens(row: dict[str, Any]) -> list[str]:
    """Return the limits of tokens' times that a case exceeds, as sentences."""
    found = []
    if row["between_tokens_p99_ratio"] is None or row["between_tokens_p99_ratio"] > MAX_ITL_RATIO:
        found.append(f"the p99 between tokens is more than {MAX_ITL_RATIO} times the undisturbed one")
    for kind, times in row["first_token_p50_ratios"].items():
        if times is None or times > MAX_TTFT_RATIO:
            found.append(f"the median first token of {kind} chats is over {MAX_TTFT_RATIO} times the undisturbed one")
    return found


def misses(row: dict[str, Any]) -> list[str]:
    """Return the limits that a case exceeds, as sentences."""
    found = [] if CASES[row["case"]].is_served else late_tokens(row)
    growth = row["attacked"]["rss_peak_mb"] - row["rss_before_mb"]
    if growth > MAX_GROWTH_MB:
        found.append(f"the API process grew by {growth:.0f} MB, which is more than {MAX_GROWTH_MB:.0f}")
    if row["attacked"]["health_ms"].get("p99", float("inf")) > MAX_HEALTH_MS:
        found.append(f"the p99 of /health is over {MAX_HEALTH_MS:.0f} ms")
    for name in ("between_tokens_ms", "first_token_ms", "health_ms"):
        if failures := row["attacked"][name]["failures"]:
            found.append(f"{len(failures)} ordinary requests failed, such as {failures[0]!r}")
    return found


def line(row: dict[str, Any]) -> str:
    """Return a case as a row of a Markdown table."""
    attacked, undisturbed = row["attacked"], row["undisturbed"]
    times = row["between_tokens_p99_ratio"]
    outcomes = ", ".join(f"{count} × {outcome}" for outcome, count in row["outcomes"].items())
    cells = (
        row["client"],
        f"{undisturbed['between_tokens_ms'].get('p99', 0):.1f}",
        f"{attacked['between_tokens_ms'].get('p99', 0):.1f}",
        "none" if times is None else f"{times:.2f}",
        *(
            f"{window['first_token_ms'][kind].get('p50', 0):.0f}"
            for kind in KINDS
            for window in (undisturbed, attacked)
        ),
        f"{undisturbed['health_ms'].get('p99', 0):.0f}",
        f"{attacked['health_ms'].get('p99', 0):.0f}",
        f"{1000 * undisturbed['lag_p99_s']:g}",
        f"{1000 * attacked['lag_p99_s']:g}",
        f"{undisturbed['api_cores']:.2f}",
        f"{attacked['api_cores']:.2f}",
        f"{row['rss_before_mb']:.0f}",
        f"{attacked['rss_peak_mb']:.0f}",
        f"{row['rss_after_mb']:.0f}",
        outcomes,
    )
    return f"| {' | '.join(cells)} |"


HEADINGS = (
    "hostile client",
    "between tokens p99 undisturbed, ms",
    "attacked",
    "ratio",
    "first token of a short chat p50 undisturbed, ms",
    "attacked",
    "of a long chat undisturbed",
    "attacked",
    "/health p99 undisturbed, ms",
    "attacked",
    "event loop lag p99 at most, undisturbed, ms",
    "attacked",
    "cores of the API process, undisturbed",
    "attacked",
    "its MB before",
    "peak",
    "after",
    "outcomes",
)


def seconds_of_window(text: str) -> float:
    """Parse the option --seconds. Raises `argparse.ArgumentTypeError`."""
    seconds = float(text)
    if not 1.0 <= seconds <= MAX_SECONDS:
        raise argparse.ArgumentTypeError(f"must be between 1 and {MAX_SECONDS:.0f}, got {text}")
    return seconds


def main() -> None:
    """Measure, print and save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=seconds_of_window, default=10.0, help="length of a window; default: 10")
    parser.add_argument("--only", choices=CASES, action="append", metavar="CASE", help=f"one of {', '.join(CASES)}")
    options = parser.parse_args()
    print(f"| {' | '.join(HEADINGS)} |\n|{len(HEADINGS) * '--|'}")
    rows = []
    for case in options.only or CASES:
        rows.append(measure(case, options.seconds))
        print(line(rows[-1]), flush=True)
    summary = {row["case"]: {"ratio": row["between_tokens_p99_ratio"], "misses": misses(row)} for row in rows}
    for case, found in summary.items():
        for miss in found["misses"]:
            print(f"{case}: {miss}")
    settings = {
        "seconds": options.seconds,
        "slots": SLOTS,
        "health_checks_per_second": 20,
    }
    name = "_".join(["hostile", *(options.only or ())])
    print("Saved to", save(name, settings, rows, summary))


if __name__ == "__main__":
    main()
