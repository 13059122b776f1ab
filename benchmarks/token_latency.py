"""Latency that the API process adds to a token: from the engine's send to the socket write, and to the client.

A random-weight model of 108M parameters in a real server on the same cores, with concurrent streams. The engine records
when it sends a step's tokens, server and client when each event passes, with one clock. A step's tokens leave the
engine together and are served one after another, so the last stream waits for the others.

Measured with three clients. "beside" shares the cores and wakes for every token, as in the other benchmarks here.
"elsewhere" is woken when its answer is complete, as if it were on another machine, so the added latency is the
server's alone. The third is like "elsewhere", over WebSockets.

    python -m benchmarks.token_latency       # 5 runs at each number of streams
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from app.http.websocket import WebSocketProtocol
from app.resources import demo_model
from app.text.text_model import TextModel
from benchmarks import realtime_client, sse_client
from benchmarks.http_overhead import make_model
from benchmarks.results import save, spread
from benchmarks.sse_client import Part

STREAMS, PROMPT, OUTPUT = (1, 16, 64), 32, 64
WEBSOCKET = "elsewhere, WebSocket"
# Clients, and the places at which their tokens are timed.
CLIENTS = {"elsewhere": ("api",), WEBSOCKET: ("api",), "beside": ("api", "client")}
# Patterns of an event with text; the group is the request ID.
TOKENS = (rb'"id":"cmpl-([^"]+)"[^\n]*"text":"[^"]', rb'"response_id":"resp_([^"]+)"[^\n]*"delta":"[^"]')
WORD = str(TextModel.load(demo_model()).encode(" the", add_special_tokens=False)[0])


def serve(options: list[str], stamps: str) -> None:
    """Run `carousel serve` with the timestamping engine process, recording socket writes."""
    import app.engine_client.engine_process
    import app.http.connection
    from app.__main__ import main as command

    original = subprocess.Popen

    def spawn(arguments: list[str], **kwargs: Any) -> subprocess.Popen[bytes]:
        if arguments[1:3] == ["-m", "engine.worker"]:
            arguments = [arguments[0], "-m", "benchmarks.stamped_worker", *arguments[3:], stamps]
        return original(arguments, **kwargs)

    app.engine_client.engine_process.subprocess.Popen = spawn  # type: ignore[assignment, misc]
    written: list[tuple[float, bytes]] = []
    send, write = RequestResponseCycle.send, app.http.connection.write
    websocket_send, websocket_write = WebSocketProtocol.send, WebSocketProtocol.write

    def record(transport: Any, body: bytes) -> None:
        # uvloop writes at once; data in the transport's buffer is data that the socket did not accept.
        assert not transport.get_write_buffer_size(), "the socket is full, so the time of the write is unknown"
        written.append((time.perf_counter(), body))

    async def recording_send(self: RequestResponseCycle, message: Any) -> None:
        await send(self, message)
        if message["type"] == "http.response.body":
            record(self.transport, message["body"])

    def recording_write(transport: Any, piece: bytes) -> bool:
        done = write(transport, piece)
        if done:
            record(transport, piece)
        return done

    async def recording_websocket_send(self: WebSocketProtocol, message: Any) -> None:
        await websocket_send(self, message)
        record(self.transport, message.get("text", "").encode())

    def recording_websocket_write(self: WebSocketProtocol, messages: list[bytes]) -> bool:
        done = websocket_write(self, messages)
        if done:
            record(self.transport, b"\n".join(messages))
        return done

    RequestResponseCycle.send = recording_send  # type: ignore[method-assign]
    app.http.connection.write = recording_write
    WebSocketProtocol.send = recording_websocket_send  # type: ignore[method-assign]
    WebSocketProtocol.write = recording_websocket_write  # type: ignore[method-assign]
    sys.argv = ["carousel", "serve", *options]
    try:
        command()
    finally:
        moments: dict[str, list[float]] = {}
        for moment, body in written:
            for event in TOKENS:
                for name in re.findall(event, body):
                    moments.setdefault(name.decode(), []).append(moment)
        Path(stamps + ".api").write_text(json.dumps(moments))


async def receive(port: int, index: int, client: str) -> tuple[str, list[float]]:
    """Read one stream and return its request ID and, except for WebSockets, the arrival times of events with text."""
    if client == WEBSOCKET:
        response = await realtime_client.answer(port, f"{'word ' * 20}{index}", OUTPUT)
        return response.removeprefix("resp_"), []
    # Force every token to be the same whole word, so that every token is an event.
    body = {"max_tokens": OUTPUT, "temperature": 0, "stream": True, "ignore_eos": True, "logit_bias": {WORD: 100}}
    prompt = [300 + (7 * index + 13 * j) % 3000 for j in range(PROMPT)]
    wakes_at = 1 << 17 if client == "elsewhere" else None
    parts: list[Part] = []
    await sse_client.receive("127.0.0.1", port, "/v1/completions", body | {"prompt": prompt}, parts.append, wakes_at)
    name = re.search(rb"x-request-id: (\S+)", b"".join(data for _, data in parts))
    assert name
    moments: list[float] = []
    rest = b""
    for moment, data in parts:
        *lines, rest = (rest + data).split(b"\n")
        moments += [moment] * sum(b'"text":"' in line and b'"text":""' not in line for line in lines)
    return name.group(1).decode(), moments


def run(port: int, streams: int, client: str) -> dict[str, list[float]]:
    """Run all streams and return arrival times by request ID."""

    async def all_of_them() -> list[tuple[str, list[float]]]:
        return await asyncio.gather(*(receive(port, index, client) for index in range(streams)))

    return dict(sse_client.run(all_of_them()))


def main() -> None:
    """Measure, print and save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(json.loads(options.serve[0]), options.serve[1])
        return
    arrivals: list[tuple[int, int, str, dict[str, list[float]]]] = []
    with tempfile.TemporaryDirectory() as folder:
        stamps = Path(folder) / "stamps.json"
        make_model(Path(folder))
        random = [folder, "--load-format", "dummy", "--no-enable-prefix-caching"]
        flags = json.dumps([*random, "--port", "0", "--max-num-seqs", str(max(STREAMS))])
        command = [sys.executable, "-m", "benchmarks.token_latency", "--serve", flags, str(stamps)]
        server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=os.environ)
        assert server.stderr is not None
        ready = next(found for line in server.stderr if (found := re.match(r"Ready: http://[^:]+:(\d+)", line)))
        port = int(ready.group(1))
        run(port, max(STREAMS), "beside")  # warm-up
        for number in range(options.runs):
            for streams in STREAMS:
                for client in CLIENTS:
                    arrivals.append((number, streams, client, run(port, streams, client)))
        server.send_signal(signal.SIGINT)  # the server writes its timestamps before it ends
        server.wait()
        server.stderr.close()
        for _ in range(100):  # the engine ends after its channel has closed
            if stamps.exists():
                break
            time.sleep(0.1)
        sent: dict[str, list[float]] = json.loads(stamps.read_text())
        written: dict[str, list[float]] = json.loads(Path(f"{stamps}.api").read_text())
    rows = []
    for number, streams, client, arrived in arrivals:
        row: dict[str, Any] = {"run": number, "streams": streams, "client": client}
        for where in CLIENTS[client]:
            times = written if where == "api" else arrived
            delays = sorted(
                1000 * (there - left) for name in arrived for left, there in zip(sent[name], times[name], strict=True)
            )
            row |= {f"{where}_p50_ms": statistics.median(delays), f"{where}_p99_ms": delays[int(0.99 * len(delays))]}
        rows.append(row)
    summary = {}
    for streams in STREAMS:
        for client, places in CLIENTS.items():
            matching = [row for row in rows if (row["streams"], row["client"]) == (streams, client)]
            keys = [f"{where}_{figure}_ms" for where in places for figure in ("p50", "p99")]
            found = summary[f"{streams} streams, client {client}"] = {
                key: spread([row[key] for row in matching]) for key in keys
            }
            shown = (f"{key} {s['median']:.2f} ({s['min']:.2f}-{s['max']:.2f})" for key, s in found.items())
            print(f"{streams:3} streams, client {client:20}: " + ", ".join(shown))
    settings = {"streams": STREAMS, "prompt": PROMPT, "output": OUTPUT, "model": "108M, random"}
    print("Saved to", save("token_latency", settings, rows, summary))


if __name__ == "__main__":
    main()
