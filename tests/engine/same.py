"""Helpers that run requests through a real engine and collect their tokens."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from operator import attrgetter
from pathlib import Path
from typing import Any

from app.text.text_model import TextModel
from engine.build import build_engine
from engine.config import EngineConfig
from engine.engine import Engine
from engine.scheduling.integrity import check_integrity
from engine.types import PreemptionMode, Request, SamplingParams, ServiceClass, TokenEvent

TURNS = ("Hello!", "Tell me a story about a fox.", "Count from 3 to 12.", "What is 7 plus 8?", "what are pages")
TOKEN_ID: Callable[[TokenEvent], Any] = attrgetter("token_id")
Texts = dict[tuple[str, int], list[Any]]  # by request and choice


def make_engine(model: Path, **options) -> Engine:
    """Build a CPU engine, in float32 by default."""
    defaults = {"max_num_seqs": 64, "max_num_batched_tokens": 512, "page_size": 16, "device": "cpu", "dtype": "float32"}
    engine = build_engine(EngineConfig(model=str(model), **(defaults | options)))
    if (model / "tokenizer.json").exists():
        engine.use_vocabulary(TextModel.load(model).vocabulary())
    return engine


def requests(prompts: Iterable[Iterable[int]], max_tokens: int, stop: Iterable[int] = ()) -> list[Request]:
    """Return requests, half greedy and half seeded, over all classes and with every kind of sampling parameter."""
    built: list[Request] = []
    for i, prompt in enumerate(prompts):
        sampling = SamplingParams(
            max_tokens=max_tokens,
            temperature=0.0 if i % 2 == 0 else 0.7 + 0.1 * (i % 5),
            top_k=20 if i % 3 == 0 else 0,
            top_p=0.9 if i % 4 == 1 else 1.0,
            min_p=0.05 if i % 8 == 3 else 0.0,
            top_n_sigma=1.5 if i % 16 == 7 else 0.0,
            repetition_penalty=1.2 if i % 6 == 5 else 1.0,
            frequency_penalty=0.4 if i % 7 == 3 else 0.0,
            seed=1000 + i,
            stop_token_ids=tuple(stop),
        )
        service_class = ServiceClass(i % 3)
        built.append(Request(id=f"r{i}", prompt=tuple(prompt), sampling=sampling, service_class=service_class))
    return built


def run(
    engine: Engine,
    submitted: Iterable[Request],
    before_step: Callable[[], None] = lambda: None,
    value_of: Callable[[TokenEvent], Any] = TOKEN_ID,
) -> Texts:
    """Submit all requests at once and step until done, checking integrity after each step. `value_of`: value to collect
    for each token."""
    texts: Texts = {}
    for request in submitted:
        engine.submit(request)
    while engine.has_work:
        before_step()
        for event in engine.step():
            if isinstance(event, TokenEvent):
                texts.setdefault((event.request_id, event.choice), []).append(value_of(event))
        check_integrity(engine.scheduler)
    assert engine.scheduler.kv_manager.pool.held == 0
    return texts


def alone(engine: Engine, submitted: Iterable[Request], value_of: Callable[[TokenEvent], Any] = TOKEN_ID) -> Texts:
    """Run the requests one at a time, without cached pages of the previous ones."""
    texts: Texts = {}
    for request in submitted:
        engine.scheduler.kv_manager.pool.forget_cached()
        texts |= run(engine, [request], value_of=value_of)
    return texts


def conversations(text: TextModel, count: int, max_tokens: int) -> list[Request]:
    """Return requests of `count` conversations, many of which share a prefix."""
    chats = [
        text.render_chat([{"role": "user", "content": TURNS[i % len(TURNS)] + " Please." * (i // len(TURNS))}])
        for i in range(count)
    ]
    return requests([text.encode(chat, add_special_tokens=False) for chat in chats], max_tokens, text.eos_token_ids)


def check_any_batch(model: Path, submitted: list[Request]) -> None:
    """Assert that a model gives each request the same text alone, in a batch in chunks, from a warm cache, and
    preempted every few steps."""
    expected = alone(make_engine(model, dtype="auto"), submitted)
    assert len({tuple(tokens) for tokens in expected.values()}) > len(submitted) // 4
    engine, steps = make_engine(model, dtype="auto", prefill_chunk=7), itertools.count()

    def preempt_some() -> None:
        if next(steps) % 3 == 0:
            for sequence in list(engine.scheduler.running)[::2]:
                engine.scheduler.preempt(sequence, 0.0, mechanism=PreemptionMode.RECOMPUTE)

    assert run(engine, submitted) == expected
    assert run(engine, submitted, preempt_some) == expected
