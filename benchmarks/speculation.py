"""Tokens a second with drafts over those without, for answers that repeat much, little and nothing.

    make model && python -m benchmarks.speculation

Two engines in one process, SmolLM2-135M-Instruct in four bits, answer the same requests in alternating rounds, with
`--speculation auto` and `off`. Texts are greedy, without the penalty that the model recommends, and must be equal. The
ratio is the median of those of the rounds.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from typing import Any, Literal

from app.text.packaged_model import DEFAULT_MODEL
from app.text.text_model import TextModel
from benchmarks.results import origin, save, spread
from engine.build import build_engine
from engine.config import EngineConfig
from engine.engine import Engine
from engine.types import Request, SamplingParams, TokenEvent

PEOPLE = "Anna is 30 and lives in Rome, Bert is 41 and lives in Oslo, Carl is 22 and lives in Bonn."
PROMPTS = {
    "JSON from a text": f"Translate into JSON with the fields name, age and city: {PEOPLE}",
    "quote": f"Repeat this text word by word: {PEOPLE} All of them like to read books about the sea and the stars.",
    "code": "Write a Python class for a bank account with deposit, withdraw and transfer methods and docstrings.",
    "chat": "Tell me about owls.",
}
STREAMS = (1, 4, 16)
MAX_TOKENS = 200
MODES: tuple[Literal["off", "auto"], ...] = ("off", "auto")


def answers(engine: Engine, prompt: tuple[int, ...], streams: int, stop: tuple[int, ...]) -> tuple[list[Any], float]:
    """Return the texts of simultaneous requests, and tokens a second."""
    texts: dict[str, list[int]] = {f"{time.monotonic_ns()}-{number}": [] for number in range(streams)}
    for name in texts:
        sampling = SamplingParams(max_tokens=MAX_TOKENS, temperature=0.0, stop_token_ids=stop)
        engine.submit(Request(id=name, prompt=prompt, sampling=sampling))
    began = time.perf_counter()
    while engine.has_work:
        for event in engine.step():
            if isinstance(event, TokenEvent):
                texts[event.request_id].append(event.token_id)
    seconds = time.perf_counter() - began
    return list(texts.values()), sum(map(len, texts.values())) / seconds


def main() -> None:
    """Measure, print and save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=str(DEFAULT_MODEL.file))
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    text = TextModel.load(Path(options.model))
    engines = {
        mode: build_engine(EngineConfig(model=options.model, speculation=mode, num_pages=2000)) for mode in MODES
    }
    rows: list[dict[str, Any]] = []
    summary: dict[str, Any] = {}
    print(origin()["processor"])
    for streams in STREAMS:
        for name, question in PROMPTS.items():
            chat = text.render_chat([{"role": "user", "content": question}])
            prompt, ratios = tuple(text.encode(chat, add_special_tokens=False)), []
            for number in range(-1, options.rounds):  # the first one fills the prefix cache
                found = {}
                for mode in MODES if number % 2 else reversed(MODES):
                    before = engines[mode].load().counters
                    texts, speed = answers(engines[mode], prompt, streams, tuple(text.eos_token_ids))
                    after = engines[mode].load().counters
                    steps, tokens = after.steps - before.steps, sum(map(len, texts))
                    found[mode] = texts, speed
                    row = {"text": name, "streams": streams, "round": number, "mode": mode, "tokens_per_s": speed}
                    rows += [row | {"tokens": tokens, "steps": steps}] if number >= 0 else []
                assert found["off"][0] == found["auto"][0], "drafts have changed a text"
                if number >= 0:
                    ratios.append(found["auto"][1] / found["off"][1])
            case = f"{name}, {streams} streams"
            summary[case] = spread(ratios) | {"tokens a step and stream": tokens_a_step(rows, name, streams)}
            print(case, {key: round(value, 2) for key, value in summary[case].items()}, flush=True)
    settings = {"model": Path(options.model).name, "max_tokens": MAX_TOKENS, "rounds": options.rounds}
    print("Saved to", save("speculation", settings, rows, summary))


def tokens_a_step(rows: list[dict[str, Any]], text: str, streams: int) -> float:
    """Return the tokens of a stream in a step with drafts."""
    own = [row for row in rows if (row["text"], row["streams"], row["mode"]) == (text, streams, "auto")]
    return statistics.median([float(row["tokens"] / row["steps"] / streams) for row in own])


if __name__ == "__main__":
    main()
