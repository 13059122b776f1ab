"""Whole server on a GPU from the client's side: start, one stream, many, and interactive requests next to a backlog.

Figures are those of `benchmarks.peers` (tokens per second, time to first token, time between tokens), to be compared
with those that `benchmarks.gpu` measures inside the engine. The last row has the server's counters of preemptions and
swaps.

    python -m benchmarks.gpu_server                           # Llama-3.2-1B's shape with random weights, 32 streams
    python -m benchmarks.gpu_server --shape demo              # the demo model
    python -m benchmarks.gpu_server --shape tiny --device cpu # run the code on a tiny shape, to test it
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

from benchmarks.peers.load import Stream, figures, over_http
from benchmarks.peers.model import BYTES, make_tokenizer
from benchmarks.results import save
from benchmarks.serving import Serving
from benchmarks.shapes import SHAPES, Shape

PROMPT, INTERACTIVE_PROMPT, INTERACTIVE_TOKENS, INTERACTIVE_REQUESTS = 512, 256, 32, 10
BACKLOG = 3  # background requests per slot, each twice as long as usual
HEAD_START_SECONDS = 0.5  # from the start of the backlog to the first interactive request
RATES = ("tokens_per_s", "requests_per_s")  # meaningless for answers one after another
STORY, CHARACTERS_PER_TOKEN = "Tell me a story about a fox. ", 3
COUNTERS = re.compile(r"^(carousel:\S*(?:preempt|swap|recomput|resum)\S*) (\S+)$", re.M)


class Client:
    """Sends completions to one server and adds a row of figures for each load."""

    def __init__(self, port: int, vocabulary: int | None, tokens: int, prompt: int) -> None:
        """vocabulary: number of made-up words; None: the demo model, with text prompts. tokens: per answer.
        prompt: tokens per prompt."""
        self._port, self._vocabulary = port, vocabulary
        self._tokens, self._prompt = tokens, prompt
        self.rows: list[dict[str, Any]] = []

    def warm_up(self) -> None:
        """Request one short answer."""
        over_http(self._port, [self._body(0, self._prompt, 8)])

    def streams(self, name: str, count: int) -> None:
        """Measure `count` concurrent requests."""
        bodies = [self._body(100 + i, self._prompt, self._tokens) for i in range(count)]
        self._add(name, over_http(self._port, bodies))

    def interactive_beside_backlog(self, slots: int) -> None:
        """Measure interactive requests one after another, with more background requests than slots."""
        bodies = [self._body(1000 + i, self._prompt, 2 * self._tokens, "flex") for i in range(BACKLOG * slots)]
        backlog: list[Stream] = []
        thread = threading.Thread(target=lambda: backlog.extend(over_http(self._port, bodies)))
        thread.start()
        time.sleep(HEAD_START_SECONDS)
        people: list[Stream] = []
        for i in range(INTERACTIVE_REQUESTS):
            began = time.perf_counter()
            (answer,) = over_http(self._port, [self._body(5000 + i, self._prompt // 2, INTERACTIVE_TOKENS, "priority")])
            people.append(answer)
            time.sleep(max(0.0, began + 0.05 - time.perf_counter()))
        self._add("people beside a backlog", people, without=RATES)
        thread.join()
        self._add("the backlog", backlog)

    def counters(self) -> None:
        """Add a row with the server's counters that are not zero."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/metrics", timeout=10) as response:
            text = response.read().decode()
        counters = {name: float(value) for name, value in COUNTERS.findall(text) if float(value)}
        self._show({"what": "counters", **counters})

    def _body(self, seed: int, prompt: int, tokens: int, tier: str | None = None) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": "m", "prompt": self._prompt_of(seed, prompt), "max_tokens": tokens, "ignore_eos": True,
            "seed": seed, "temperature": 0.8, "stream": True, "stream_options": {"include_usage": True},
        }  # fmt: skip
        return body | ({"service_tier": tier} if tier else {})

    def _prompt_of(self, seed: int, tokens: int) -> str | list[int]:
        """Return a unique prompt of `tokens` tokens, approximately for the demo model."""
        if self._vocabulary is None:
            return (f"{seed}. " + STORY * tokens)[: CHARACTERS_PER_TOKEN * tokens]
        return [BYTES + (7919 * (i + 1) * (seed + 3)) % (self._vocabulary - BYTES) for i in range(tokens)]

    def _add(self, name: str, answers: list[Stream], without: tuple[str, ...] = ()) -> None:
        """Add a row. Answers without text, from control tokens of the demo model, have no latencies."""
        with_text = [answer for answer in answers if answer.moments]
        columns = figures(with_text) if with_text else {}
        row = {name: value for name, value in columns.items() if name not in without}
        self._show({"what": name, "requests": len(answers), "with_text": len(with_text), **row})

    def _show(self, row: dict[str, Any]) -> None:
        self.rows.append(row)
        shown = (f"{key} {value:.1f}" if isinstance(value, float) else f"{key} {value}" for key, value in row.items())
        print(", ".join(shown).removeprefix("what "), flush=True)


def make_folder(folder: Path, shape: Shape) -> None:
    """Write a checkpoint without weights: configuration and a tokenizer of made-up words."""
    (folder / "config.json").write_text(json.dumps(shape.config() | {"bos_token_id": 1, "eos_token_id": 0}))
    make_tokenizer(folder, shape.vocab, shape.config()["max_position_embeddings"])


def main() -> int:
    """Start the server, measure and save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=("demo", *SHAPES), default="Llama-3.2-1B")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--no-early-launch", action="store_true")
    parser.add_argument("--also-in", type=Path)
    options = parser.parse_args()
    on_gpu = options.device.startswith("cuda")
    streams, tokens, prompt = (options.streams, options.tokens, PROMPT) if on_gpu else (4, 16, 24)
    with tempfile.TemporaryDirectory() as name:
        folder, model, weights = Path(name), "demo", []
        vocabulary: int | None = None
        if options.shape != "demo":
            make_folder(folder, SHAPES[options.shape])
            vocabulary, model = SHAPES[options.shape].vocab, name
            weights = ["--load-format", "dummy"]
        early = ["--no-early-launch"] if options.no_early_launch else []
        began = time.perf_counter()
        with Serving(
            *weights, *early, "--served-model-name", "m", "--device", options.device, "--max-num-seqs", str(streams),
            model=model, log=folder / "server.log",
        ) as server:  # fmt: skip
            client = Client(server.port, vocabulary, tokens, prompt)
            client._show({"what": "start", "seconds": time.perf_counter() - began})
            client.warm_up()
            client.streams("one stream", 1)
            client.streams(f"{streams} streams", streams)
            client.interactive_beside_backlog(streams)
            client.counters()
        log = (folder / "server.log").read_text().splitlines(keepends=True)
        sys.stderr.writelines(line for line in log if "carousel.access" not in line)
    if on_gpu:
        settings = {"shape": options.shape, "streams": streams, "early_launch": not options.no_early_launch}
        path = save("gpu_server", settings, client.rows, {})
        if options.also_in is not None:
            shutil.copy(path, options.also_in)
    return 0


if __name__ == "__main__":
    sys.exit(main())
