"""Soak test: one server under engine kills, disconnecting clients and floods, with clients that must not be affected.

- Bystanders (12 over SSE, 4 over /v1/realtime) send one request after another. Each answer is compared with the text of
  the undisturbed server at the beginning. soak_clients.py has them, disconnecting clients, and watchers.
- The engine process is killed every 60 to 120 s, by SIGKILL, now and then by SIGSTOP until the watchdog acts.
- One hostile client after another (hostile_clients.py) attacks for 20 s, with 10 s of quiet in between.

Memory, descriptors and threads of both processes, the event loop's lag and the latency of /health are sampled every
5 s. Slopes of the API process are computed over the quiet phases, one point each, after every kind of hostile client
has attacked once: one-time costs of a kind of input, such as a larger allocator arena, are not a leak. Slopes of the
engine process are computed over its lives, with a sample at the same age in each. The verdict is "within noise" if 0 is
in the 95 % interval of a slope, or if the growth over an hour is below 1 % of the level (soak_trend.py).

The exit status is 1 if a bystander failed, if the engine restarted more often than it was killed, or if requests or
pages were left over at the end.

    python -m benchmarks.soak                        # 30 minutes
    python -m benchmarks.soak --minutes 240 --seed 7
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
import threading
import time
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]

from benchmarks.bystanders import check_health
from benchmarks.hostile import MB, Child, lag_bucket, lag_counts
from benchmarks.hostile_clients import HOST
from benchmarks.results import save
from benchmarks.serving import Serving, engine_processes
from benchmarks.soak_plan import Plan, make_plan
from benchmarks.soak_trend import Trend, quiet_points, trend
from benchmarks.tally import percentile

REQUESTS = 40  # number of different SSE requests
SLOTS = 32
RESUME_TTL_SECONDS = 30  # finished answers are stored this long, which determines the memory level
SAMPLE_SECONDS = 5.0
SAMPLES_PER_LINE = 12  # samples per progress line
SETTLE_SECONDS = 3.0  # after a flood, before samples count
LIFE_AGE_SECONDS, MAX_AGE_ERROR_SECONDS = 45.0, 5.0  # engine age of the sample that represents a life
QUIET_BLOCK, LIFE_BLOCK = 10, 2  # points that the bootstrap resamples together: 5 minutes, two lives
HTTP_SECONDS = 30.0
READY_POLL_SECONDS = 0.2
MAX_RECOVERY_SECONDS = 120.0  # from a kill until the next engine serves
MIN_MINUTES, MAX_MINUTES = 0.1, 7 * 24 * 60
MAX_DRAIN_SECONDS = 30.0  # until nothing is left over after the clients have ended
LOG = Path(__file__).parent.parent / "build" / "soak.log"
MEASURES = ("rss_mb", "pss_mb", "descriptors", "threads")
METRIC = r"^{}(?:\{{[^}}]*\}})? (\S+)$"
LEFT_OVER = {
    "running": r"vllm:num_requests_running",
    "waiting": r"vllm:num_requests_waiting",
    "paused": r"carousel:num_requests_paused",
    "pages held": r'carousel:kv_pages\{[^}]*state="held"[^}]*\}',
}


class Target:
    """Server under test: its processes, metrics and health."""

    def __init__(self, server: Serving) -> None:
        self.port = server.port
        self._api = psutil.Process(server.process.pid)

    def engine(self) -> psutil.Process | None:
        """Return the engine process, or None while there is none."""
        return next(engine_processes(self._api.pid), None)

    def metrics(self) -> str:
        """Return the text of /metrics."""
        with urllib.request.urlopen(f"http://{HOST}:{self.port}/metrics", timeout=HTTP_SECONDS) as answer:
            return str(answer.read().decode())

    def health(self) -> tuple[float | None, str]:
        """Return the latency of /health in seconds and an empty text, or None and the beginning of a failed answer."""
        try:
            return check_health(self.port), ""
        except OSError as error:
            return None, str(error)[:100]

    def recovers(self, killed: int, ended: threading.Event) -> bool:
        """Wait until a successor of the engine process `killed` serves. Return False on a timeout."""
        deadline = time.monotonic() + MAX_RECOVERY_SECONDS
        while time.monotonic() < deadline and not ended.wait(READY_POLL_SECONDS):
            engine = self.engine()
            if engine is not None and engine.pid != killed and self.health()[0] is not None:
                return True
        return False

    def sample(self) -> dict[str, Any]:
        """Return all sampled figures; None for the engine while there is none."""
        health, answer = self.health()
        row = {"at": time.time(), "health_s": health, "health": answer, "api": figures_of(self._api), "engine": None}
        try:
            if engine := self.engine():
                age = time.time() - engine.create_time()
                row["engine"] = {**figures_of(engine), "pid": engine.pid, "age_s": age}
        except psutil.Error:  # the engine has ended meanwhile
            pass
        return row


def figures_of(process: psutil.Process) -> dict[str, float]:
    """Return memory in megabytes, descriptors and threads of a process."""
    memory = process.memory_full_info()
    return {
        "rss_mb": memory.rss / MB,
        "pss_mb": memory.pss / MB,
        "descriptors": process.num_fds(),
        "threads": process.num_threads(),
    }


def total(metrics: str, pattern: str) -> float:
    """Return the sum of the matching series in the text of /metrics."""
    return sum(float(value) for value in re.findall(METRIC.format(pattern), metrics, re.MULTILINE))


def kill_engines(plan: Plan, target: Target, began: float, ended: threading.Event) -> list[dict[str, Any]]:
    """Execute the kills of a plan. Return the time of each, and the seconds until the next engine served."""
    rows = []
    for kill in plan.kills:
        if ended.wait(max(0.0, began + kill.at - time.time())):
            break
        if (engine := target.engine()) is None:
            continue  # no engine since the previous kill, which counts as not recovered
        at = time.time()
        engine.send_signal(kill.signal)
        has_recovered = target.recovers(engine.pid, ended)
        seconds = time.time() - at if has_recovered else None
        rows.append({"at": at, "signal": kill.signal.name, "pid": engine.pid, "recovered_s": seconds})
    return rows


def flood(plan: Plan, port: int, began: float, ended: threading.Event) -> list[dict[str, Any]]:
    """Execute the floods of a plan. Return the start, end and outcomes of each."""
    rows: list[dict[str, Any]] = []
    for planned in plan.floods:
        with Child("hostile_clients", planned.case, port, planned.seconds) as client:
            client.read()  # wait until it is ready
            if ended.wait(max(0.0, began + planned.at - time.time())):
                client.process.kill()
                break
            at = time.time()
            attack = client.ask()
        rows.append({"case": planned.case, "began": at, "ended": time.time(), "outcomes": attack["outcomes"]})
    return rows


def sample(plan: Plan, target: Target, clients: Child, began: float) -> list[dict[str, Any]]:
    """Return the samples of the whole plan, printing progress."""
    rows: list[dict[str, Any]] = []
    lag = lag_counts(target.metrics())
    due = began
    while due <= began + plan.seconds:
        time.sleep(max(0.0, due - time.time()))
        row = target.sample()
        lag, before = lag_counts(target.metrics()), lag
        rows.append(row | {"lag_p99_s": lag_bucket(before, lag, 0.99)})
        if not len(rows) % SAMPLES_PER_LINE:
            found = clients.ask()
            answers, failures = sum(found["answers"].values()), sum(found["failures"].values())
            memory = row["api"]["rss_mb"]
            print(
                f"{(due - began) / 60:.0f} min: {answers} answers, {failures} failures, API {memory:.0f} MB", flush=True
            )
        due = max(due + SAMPLE_SECONDS, time.time())
    return rows


def left_over(target: Target) -> dict[str, float]:
    """Wait until no request runs or waits and no page is held. Return the remainder after `MAX_DRAIN_SECONDS`."""
    deadline = time.monotonic() + MAX_DRAIN_SECONDS
    while True:
        metrics = target.metrics()
        found = {name: total(metrics, pattern) for name, pattern in LEFT_OVER.items()}
        found = {name: value for name, value in found.items() if value}
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(READY_POLL_SECONDS)


def soak(plan: Plan, seed: int, requests: int = REQUESTS) -> dict[str, Any]:
    """Execute a plan against a server of the demo model.

    Return samples, kills, floods, figures of the clients, engine restarts, and left-over requests and pages.
    """
    LOG.parent.mkdir(exist_ok=True)
    ended = threading.Event()
    options = ("--host", HOST, "--max-num-seqs", str(SLOTS), "--resume-ttl", str(RESUME_TTL_SECONDS))
    with Serving(*options, log=LOG) as server:
        target = Target(server)
        with Child("soak_clients", server.port, seed, requests) as clients, ThreadPoolExecutor(2) as threads:
            clients.read()  # wait until it has the expected answers
            clients.start()
            began = time.time()
            try:
                killing = threads.submit(kill_engines, plan, target, began, ended)
                flooding = threads.submit(flood, plan, server.port, began, ended)
                samples = sample(plan, target, clients, began)
                kills, floods = killing.result(), flooding.result()
                found = clients.ask()
            finally:
                ended.set()
        restarts = total(target.metrics(), "carousel:engine_restarts_total")
        rest = left_over(target)
    return {
        "began": began,
        "samples": samples,
        "kills": kills,
        "floods": floods,
        "clients": found,
        "restarts": restarts,
        "left_over": rest,
    }


def trends(found: dict[str, Any]) -> dict[str, Trend]:
    """Return the trend of each measure of both processes that has points."""
    floods = [(row["began"], row["ended"]) for row in found["floods"]]
    after = warm_up_end(found["floods"])
    result = {}
    for name in MEASURES:
        points = quiet_points(
            [(row["at"], row["api"][name]) for row in found["samples"]], floods, after, SETTLE_SECONDS
        )
        if points:
            result[f"api {name}"] = trend(points, QUIET_BLOCK)
        if points := life_points(found["samples"], name):
            result[f"engine {name}"] = trend(points, LIFE_BLOCK)
    return result


def warm_up_end(floods: Sequence[dict[str, Any]]) -> float:
    """Return the time at which every kind of hostile client that attacked had ended at least once."""
    first: dict[str, float] = {}
    for row in floods:
        first.setdefault(row["case"], row["ended"])
    return max(first.values(), default=math.inf)


def life_points(samples: Sequence[dict[str, Any]], name: str) -> list[tuple[float, float]]:
    """Return time and value of the sample nearest to age `LIFE_AGE_SECONDS` in each life of the engine."""
    nearest: dict[int, tuple[float, float, float]] = {}
    for row in samples:
        if row["engine"] is not None:
            error = abs(row["engine"]["age_s"] - LIFE_AGE_SECONDS)
            pid = row["engine"]["pid"]
            if error <= MAX_AGE_ERROR_SECONDS and error < nearest.get(pid, (error + 1, 0.0, 0.0))[0]:
                nearest[pid] = (error, row["at"], row["engine"][name])
    return [(at, value) for _, at, value in nearest.values()]


def summarise(found: dict[str, Any]) -> dict[str, Any]:
    """Return the figures of a run."""
    clients, samples = found["clients"], found["samples"]
    recovered = [row["recovered_s"] for row in found["kills"] if row["recovered_s"] is not None]
    health = [row["health_s"] for row in samples if row["health_s"] is not None]
    return {
        "answers": clients["answers"],
        "failures": clients["failures"],
        "left": clients["left"],
        "slowest_answer_s": clients["slowest_seconds"],
        "kills": len(found["kills"]),
        "restarts": found["restarts"],
        "recovered": len(recovered),
        "longest_recovery_s": max(recovered, default=None),
        "floods": len(found["floods"]),
        "left_over": found["left_over"],
        "health_p50_s": percentile(health, 0.5),
        "health_p99_s": percentile(health, 0.99),
        "worst_lag_p99_s": max(row["lag_p99_s"] for row in samples),
        "trends": {name: one.figures() for name, one in trends(found).items()},
    }


def faults(summary: dict[str, Any]) -> list[str]:
    """Return the reasons for which a run failed, as sentences."""
    found = [f"{count} failures of {kind}" for kind, count in summary["failures"].items()]
    if summary["restarts"] != summary["kills"]:
        found.append(f"the engine was killed {summary['kills']} times and restarted {summary['restarts']:.0f} times")
    if summary["recovered"] != summary["kills"]:
        found.append(f"after {summary['kills'] - summary['recovered']} kills no engine served in time")
    found += [f"{name} at the end: {value:.0f}" for name, value in summary["left_over"].items()]
    return found


def report(summary: dict[str, Any], examples: list[dict[str, Any]]) -> None:
    """Print the summary as tables."""
    for name, value in summary.items():
        if name != "trends":
            print(f"{name + ':':22}{json.dumps(value)}")
    print("\n| measure | points | level | an hour | 95 % interval | verdict |\n|--|--|--|--|--|--|")
    for name, one in summary["trends"].items():
        low, high = one["interval"]
        cells = (name, one["points"], f"{one['level']:.1f}", f"{one['per_hour']:+.2f}", f"{low:+.2f} to {high:+.2f}")
        print(f"| {' | '.join(map(str, cells))} | {one['verdict']} |")
    for example in examples:
        print(example)
    for fault in faults(summary):
        print(fault)


def minutes(text: str) -> float:
    """Parse the option --minutes. Raises `argparse.ArgumentTypeError`."""
    value = float(text)
    if not MIN_MINUTES <= value <= MAX_MINUTES:
        raise argparse.ArgumentTypeError(f"must be between {MIN_MINUTES} and {MAX_MINUTES}, got {text}")
    return value


def main() -> None:
    """Run, print and save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=minutes, default=30.0, help="length of the run; default: 30")
    parser.add_argument("--seed", type=int, default=1, help="seed of kills, floods and clients; default: 1")
    options = parser.parse_args()
    found = soak(make_plan(60 * options.minutes, options.seed), options.seed)
    summary = summarise(found)
    examples = found["clients"]["examples"]
    report(summary, examples)
    settings = {"minutes": options.minutes, "seed": options.seed, "model": "models/demo", "slots": SLOTS}
    rows = [{"kills": found["kills"], "floods": found["floods"], "examples": examples}, *found["samples"]]
    print("Saved to", save("soak", settings, rows, summary))
    sys.exit(bool(faults(summary)))


if __name__ == "__main__":
    main()
