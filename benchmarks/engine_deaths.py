"""Effect on clients of killing the engine process (kill -9).

Starts 32 streams over HTTP and SSE on 16 slots at once and kills the engine process at a random point, once per round.
Each answer is compared with the answer to the same request without a kill. The pause is the largest gap in any stream
of a round: a new engine has to load, and to prefill prompts and earlier output again.

Half of the streams are greedy, and one in four of each half has a JSON format. A model in a file or folder has its
results in a file of its own.

    python -m benchmarks.engine_deaths
    python -m benchmarks.engine_deaths --model FILE.gguf
    python -m benchmarks.engine_deaths --model FOLDER --quantization int4
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.people_first import request_body
from benchmarks.results import save, spread
from benchmarks.serving import Serving
from benchmarks.sse_client import Part, receive

STREAMS, SLOTS, TOKENS = 32, 16, 200
SERVER = ("--max-num-seqs", str(SLOTS), "--max-model-len", "512")
ANIMALS = {"type": "array", "items": {"enum": ["fox", "hen", "owl"]}, "minItems": 1000}  # longer than an answer
JSON_FORMAT = {"type": "json_schema", "json_schema": {"name": "animals", "schema": ANIMALS}}


def body_of(number: int) -> dict[str, Any]:
    """Return the request of a stream: sampled or greedy, plain or with a format, of either class."""
    body = request_body("person" if number % 2 else "bulk", number, TOKENS)
    if number // 2 % 2:
        body["temperature"] = 0.0
    if number // 4 % 4 == 0:
        del body["ignore_eos"], body["min_tokens"]
        body["response_format"] = JSON_FORMAT
    return body


class Answer:
    """One stream with its arrival times."""

    def __init__(self, number: int) -> None:
        self.body = body_of(number)
        self.raw = b""
        self.moments: list[float] = []

    async def read(self, host: str, port: int) -> None:
        """Read the stream to its end."""
        await receive(host, port, "/v1/completions", self.body, self._take)

    def _take(self, part: Part) -> None:
        moment, data = part
        self.moments.append(moment)
        self.raw += data

    @property
    def text(self) -> str | None:
        """Return the text, or None if the answer is incomplete."""
        if b"data: [DONE]" not in self.raw or b'"error"' in self.raw:
            return None
        events = [json.loads(line[6:]) for line in self.raw.split(b"\n") if line.startswith(b"data: {")]
        return "".join(choice["text"] for event in events for choice in event["choices"])

    @property
    def largest_gap(self) -> float:
        """Return the largest gap between arrivals, in seconds."""
        return max(after - before for before, after in pairwise(self.moments))


async def play(server: Serving, kill_after: int | None) -> list[Answer]:
    """Run all streams at once; kill the engine once `kill_after` bytes have arrived in total."""
    answers = [Answer(number) for number in range(STREAMS)]
    reading = [asyncio.create_task(answer.read(server.host, server.port)) for answer in answers]
    while kill_after is not None and not all(task.done() for task in reading):
        if sum(len(answer.raw) for answer in answers) >= kill_after:
            server.engine.kill()
            break
        await asyncio.sleep(0.001)
    await asyncio.gather(*reading)
    return answers


async def measure(server: Serving, kills: int) -> list[dict[str, Any]]:
    """Return a row for each kill."""
    await play(server, None)
    undisturbed = await play(server, None)
    expected = [answer.text for answer in undisturbed]
    size = sum(len(answer.raw) for answer in undisturbed)
    chance, rows = random.Random(1), []
    for kill in range(kills):
        after = chance.randrange(int(0.95 * size))
        answers = await play(server, after)
        texts = [answer.text for answer in answers]
        row = {
            "killed_after": after / size,
            "failed": sum(text is None for text in texts),
            "changed": sum(text is not None and text != other for text, other in zip(texts, expected, strict=True)),
            "pause": max(answer.largest_gap for answer in answers),
        }
        rows.append(row)
        print(
            f"kill {kill}: after {100 * row['killed_after']:.0f} % of the output, pause {row['pause']:.2f} s, "
            f"{row['failed']} failed, {row['changed']} changed",
            flush=True,
        )
    return rows


def main() -> None:
    """Measure, print and save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--model", default="demo", help="file, folder or name, as of `carousel serve`")
    parser.add_argument("--quantization", default="none", help="none, int8 or int4")
    options = parser.parse_args()
    with Serving(*SERVER, "--quantization", options.quantization, model=options.model) as server:
        rows = asyncio.run(measure(server, options.kills))
    summary = {
        "answers": STREAMS * len(rows),
        "failed": sum(row["failed"] for row in rows),
        "changed": sum(row["changed"] for row in rows),
        "pause_seconds": spread([row["pause"] for row in rows]),
    }
    print(json.dumps(summary, indent=1))
    parts = [Path(options.model).stem.lower(), options.quantization]
    name = "_".join(["engine_deaths", *(part for part in parts if part not in ("demo", "none"))])
    settings = {"model": parts[0], "quantization": parts[1], "streams": STREAMS, "slots": SLOTS, "tokens": TOKENS}
    print("Saved to", save(name, settings, rows, summary))


if __name__ == "__main__":
    main()
