"""CPU of the API process by the number of its engines, with engines that compute nothing.

Engines are processes behind TCP on the same machine, whose rows all get a token every 0.1 s, so that the tokens of a
second are the same for any number of engines. A thousand streams over SSE are divided among them by the router. The
client is woken when an answer is complete, as if it were on another machine.

    python -m benchmarks.api_members               # 1, 2, 4 and 8 engines, 3 interleaved runs: 6 minutes
    python -m benchmarks.api_members --streams 100 --runs 1
"""

from __future__ import annotations

import argparse
import asyncio
import re
import secrets
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]

from benchmarks import sse_client
from benchmarks.results import save, spread
from benchmarks.serving import Serving

MEMBERS, STREAMS, TOKENS, STEP_SECONDS = (1, 2, 4, 8), 1000, 200, 0.1
PROMPT = "Once upon a time "
WAKES_AT = 1 << 20  # bytes: more than an answer has
LAG = re.compile(r'^carousel:event_loop_lag_seconds_bucket\{.*le="([^"]+)".*\} (\S+)$', re.MULTILINE)
RUNNING = re.compile(r"^vllm:num_requests_running\{.*\} (\S+)$", re.MULTILINE)


@contextmanager
def engines(count: int, slots: int, token_file: Path) -> Iterator[list[str]]:
    """Yield the addresses of engines that compute nothing."""
    with ExitStack() as stack:
        addresses = []
        for _ in range(count):
            with socket.create_server(("127.0.0.1", 0)) as sock:
                addresses.append(f"127.0.0.1:{sock.getsockname()[1]}")
            command = [sys.executable, "-m", "benchmarks.paced_engine", addresses[-1], str(token_file), str(slots)]
            process = subprocess.Popen([*command, str(STEP_SECONDS)], stderr=subprocess.PIPE, text=True)
            stack.callback(process.wait)
            stack.callback(process.kill)
            assert process.stderr is not None and process.stderr.readline().startswith("ready")
        yield addresses


def metrics(server: Serving) -> str:
    """Return the text of the server's metrics."""
    with urllib.request.urlopen(f"http://{server.host}:{server.port}/metrics", timeout=30) as answer:
        text: str = answer.read().decode()
    return text


def lag_quantile(before: str, after: str, share: float) -> float:
    """Return the bucket of the event loop's lag, in seconds, with at least `share` of the samples between two texts."""
    earlier = dict(LAG.findall(before))
    counts = [(float(limit), float(count) - float(earlier.get(limit, 0))) for limit, count in LAG.findall(after)]
    return next(limit for limit, count in counts if count >= share * counts[-1][1])


async def load(server: Serving, streams: int) -> dict[str, Any]:
    """Run all streams once; return tokens per second, CPU and lag of the loop while all of them run."""
    process = psutil.Process(server.process.pid)

    def cpu() -> float:
        times = process.cpu_times()
        return float(times.user + times.system)

    async def ask(number: int) -> list[float]:
        body = {
            "model": "carousel-demo", "prompt": f"{number} {PROMPT}", "max_tokens": TOKENS, "ignore_eos": True,
            "stream": True,
        }  # fmt: skip
        return await sse_client.stream(server.host, server.port, "/v1/completions", body, WAKES_AT)

    tasks = [asyncio.create_task(ask(number)) for number in range(streams)]
    running = 0.0
    while running < streams:
        await asyncio.sleep(0.2)
        running = sum(map(float, RUNNING.findall(await asyncio.to_thread(metrics, server))))
    before, began, used = await asyncio.to_thread(metrics, server), time.perf_counter(), cpu()
    generated = total(before)
    await asyncio.sleep(TOKENS * STEP_SECONDS / 2)
    used, seconds = cpu() - used, time.perf_counter() - began
    after = await asyncio.to_thread(metrics, server)
    generated = total(after) - generated
    await asyncio.gather(*tasks)
    return {
        "tokens_per_second": generated / seconds,
        "us_per_token": 1e6 * used / generated,
        "lag_p99": lag_quantile(before, after, 0.99),
    }


def total(text: str) -> float:
    """Return the tokens generated so far."""
    return sum(float(value) for value in re.findall(r"^vllm:generation_tokens_total\{.*\} (\S+)$", text, re.MULTILINE))


def measure(members: int, streams: int, folder: Path) -> dict[str, Any]:
    """Measure one number of engines."""
    token_file = folder / "token"
    slots = -(-streams // members)
    with (
        engines(members, slots, token_file) as addresses,
        Serving(
            "--engines", ",".join(addresses), "--token-file", str(token_file), "--max-queue", str(2 * streams),
            log=folder / "server.log",
        ) as server,
    ):  # fmt: skip
        return sse_client.run(load(server, streams))


def main() -> None:
    """Measure, print and save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=STREAMS)
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    found: dict[int, list[dict[str, Any]]] = {members: [] for members in MEMBERS}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "token").touch(0o600)
        (folder / "token").write_text(secrets.token_hex())
        for _ in range(options.runs):
            for members, runs in found.items():
                runs.append(measure(members, options.streams, folder))
                print(members, {key: round(value, 4) for key, value in runs[-1].items()}, flush=True)
    rows = [
        {"engines": members} | {key: spread([run[key] for run in runs]) for key in runs[0]}
        for members, runs in found.items()
    ]
    one = [run["us_per_token"] for run in found[1]]
    ratios = {
        f"cpu_of_{members}": statistics.median(run["us_per_token"] / base for run, base in zip(runs, one, strict=True))
        for members, runs in found.items()
    }
    print(ratios)
    settings = {"streams": options.streams, "tokens": TOKENS, "step_seconds": STEP_SECONDS, "runs": options.runs}
    save("api_members", settings, rows, ratios)


if __name__ == "__main__":
    main()
