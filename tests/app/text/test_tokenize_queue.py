"""Long texts are tokenized in the order of their classes, and not at all if they cannot fit the context."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import weakref
from dataclasses import replace
from pathlib import Path

import pytest

from app.admission.thread_queue import Caller, ThreadQueue
from app.streams.timeline import MIN_ATTRIBUTED_SECONDS, IntakeTimeline
from app.text.text_model import TextModel
from app.text.tokenize_queue import MAX_CONCURRENT, MIN_THREAD_CHARACTERS, RESERVED_INTERACTIVE, TokenizeQueue
from engine.errors import ContextExceeded
from engine.types import ServiceClass, WaitReason
from tests.limits import HANG_SECONDS

LONG_TEXT = "a " * MIN_THREAD_CHARACTERS
INTERACTIVE, STANDARD, BATCH = (Caller(service_class=each) for each in ServiceClass)
BATCH_PLACES = MAX_CONCURRENT - RESERVED_INTERACTIVE


class SlowTextModel(TextModel):
    """Text model that records texts and finishes tokenizing them when `may_end` is set."""

    def __init__(self) -> None:
        self.started: list[str] = []
        self.may_end = threading.Event()

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        self.started.append(text[-1])
        self.may_end.wait(HANG_SECONDS)
        return [len(self.started)]


async def wait_until_started(count: int, slow: SlowTextModel) -> None:
    """Wait until the tokenization of `count` texts has started."""
    while len(slow.started) < count:
        await asyncio.sleep(0.001)


async def test_interactive_texts_are_first_and_cancelled_ones_are_skipped():
    """Few texts are tokenized at once, fewer of class batch; the others follow by class, without the cancelled ones."""
    slow = SlowTextModel()
    encoding = TokenizeQueue(slow)

    def submit(name: str, caller: Caller) -> asyncio.Task[list[int]]:
        return asyncio.create_task(encoding.encode(LONG_TEXT + name, caller, add_special_tokens=True))

    first = [submit(str(number), BATCH) for number in range(BATCH_PLACES)]
    await wait_until_started(BATCH_PLACES, slow)
    leaving, batch, standard = submit("l", BATCH), submit("b", BATCH), submit("s", STANDARD)
    await asyncio.sleep(0.01)
    assert len(slow.started) == BATCH_PLACES
    interactive = [submit("p", INTERACTIVE) for _ in range(RESERVED_INTERACTIVE + 1)]
    await wait_until_started(MAX_CONCURRENT, slow)
    await asyncio.sleep(0.01)
    assert slow.started[BATCH_PLACES:] == RESERVED_INTERACTIVE * ["p"] and encoding.pending == MAX_CONCURRENT + 4
    leaving.cancel()
    slow.may_end.set()
    await asyncio.gather(*first, batch, standard, *interactive)
    assert slow.started[MAX_CONCURRENT:] == ["p", "s", "b"]
    assert encoding.pending == 0


async def test_waiting_for_other_texts_is_in_the_timeline():
    """Requests that start at once have no such wait in their timeline."""
    slow = SlowTextModel()
    encoding = TokenizeQueue(slow)
    intakes = [IntakeTimeline(time.monotonic()) for _ in range(MAX_CONCURRENT + 1)]
    tasks = [
        asyncio.create_task(encoding.encode(LONG_TEXT, replace(INTERACTIVE, intake=intake), add_special_tokens=True))
        for intake in intakes
    ]
    await wait_until_started(MAX_CONCURRENT, slow)
    await asyncio.sleep(2 * MIN_ATTRIBUTED_SECONDS)
    slow.may_end.set()
    await asyncio.gather(*tasks)
    causes = [[interval.cause for interval in intake.end(time.monotonic())] for intake in intakes]
    assert causes == [[None]] * MAX_CONCURRENT + [[None, WaitReason.TOKENIZATION, None]]


async def test_a_cancelled_tokenization_keeps_its_place_until_it_ends():
    """The place becomes free when the tokenization of the cancelled request ends, not before."""
    slow = SlowTextModel()
    encoding = TokenizeQueue(slow)
    leaving = [
        asyncio.create_task(encoding.encode(LONG_TEXT, INTERACTIVE, add_special_tokens=True))
        for _ in range(MAX_CONCURRENT)
    ]
    await wait_until_started(MAX_CONCURRENT, slow)
    for task in leaving:
        task.cancel()
    interactive = asyncio.create_task(encoding.encode(LONG_TEXT, INTERACTIVE, add_special_tokens=True))
    await asyncio.wait([*leaving, interactive], timeout=0.02)
    assert all(task.cancelled() for task in leaving) and len(slow.started) == MAX_CONCURRENT
    slow.may_end.set()
    await interactive
    assert encoding.pending == 0


async def test_a_refusal_after_cancellation_is_not_reported():
    """The exception of work whose caller was cancelled is dropped, without an error in the log."""
    slow, reported = SlowTextModel(), []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context["message"]))

    def refuse() -> None:
        slow.encode(LONG_TEXT)
        raise ContextExceeded("too long", param="prompt")

    turnstile = ThreadQueue(1)
    leaving = asyncio.create_task(turnstile.run(refuse))
    await wait_until_started(1, slow)
    leaving.cancel()
    await asyncio.wait([leaving])
    del leaving  # its traceback refers to the future of the work
    slow.may_end.set()
    await turnstile.run(lambda: None)  # its turn comes when the refusal has ended
    gc.collect()
    assert not reported


async def test_a_refused_text_is_freed_without_the_garbage_collector():
    """No reference cycle keeps a text of megabytes after its refusal."""

    class Text:
        """Like `str`, with weak references."""

    async def refused(text: Text) -> bool:
        def refuse() -> None:
            raise ContextExceeded(f"{text} is too long", param="prompt")

        try:
            await ThreadQueue(1).run(refuse)
        except ContextExceeded:
            return True
        return False

    gc.disable()
    try:
        text = Text()
        alive = weakref.ref(text)
        assert await refused(text)
        del text
        async with asyncio.timeout(HANG_SECONDS):
            while alive() is not None:  # the thread drops the function a moment after its end
                await asyncio.sleep(0.001)
    finally:
        gc.enable()


async def test_a_request_cancelled_at_its_turn_passes_it_on():
    """Otherwise the place would be lost."""
    slow = SlowTextModel()
    encoding = TokenizeQueue(slow)
    tasks = [
        asyncio.create_task(encoding.encode(LONG_TEXT, INTERACTIVE, add_special_tokens=True))
        for _ in range(MAX_CONCURRENT + 2)
    ]
    await wait_until_started(MAX_CONCURRENT, slow)
    encoding._queue._release_place()  # like a thread that has ended
    tasks[MAX_CONCURRENT].cancel()
    await wait_until_started(MAX_CONCURRENT + 1, slow)
    slow.may_end.set()
    assert len(await asyncio.gather(*tasks, return_exceptions=True)) == MAX_CONCURRENT + 2
    assert tasks[MAX_CONCURRENT].cancelled() and not tasks[-1].cancelled()


async def test_a_text_that_cannot_fit_is_not_tokenized(demo: Path, monkeypatch: pytest.MonkeyPatch):
    """It is one longest token longer than the context can hold."""
    text = TextModel.load(demo)
    longest = max(map(len, text.tokenizer.get_vocab()))
    most = MIN_THREAD_CHARACTERS // longest + 1
    fits = "a" * (most * longest)
    assert text.min_tokens(fits) == most
    monkeypatch.setattr(text, "count_tokens", lambda beginning: 0)
    encoding = TokenizeQueue(text)
    assert len(await encoding.encode(fits, BATCH, add_special_tokens=True, max_tokens=most)) >= most
    monkeypatch.setattr(text, "encode", lambda *_, **__: pytest.fail("it was tokenized"))
    with pytest.raises(ContextExceeded, match=f"at least {most + 1} tokens; the model's context has {most}"):
        await encoding.encode(fits + "a" * longest, BATCH, add_special_tokens=True, max_tokens=most)


async def test_a_text_that_is_too_long_is_refused_after_a_part_of_it(demo: Path, monkeypatch: pytest.MonkeyPatch):
    """A tokenizer's result for megabytes would hold the interpreter lock while it is created and freed."""
    text, most = TextModel.load(demo), 2048
    tokenized_sizes: list[int] = []
    count_tokens = text.count_tokens
    monkeypatch.setattr(text, "min_tokens", lambda text: 0)
    monkeypatch.setattr(text, "count_tokens", lambda part: tokenized_sizes.append(len(part)) or count_tokens(part))
    monkeypatch.setattr(text, "encode", lambda *_, **__: pytest.fail("all of it was tokenized"))
    with pytest.raises(ContextExceeded):
        await TokenizeQueue(text).encode("7" * 4_000_000, BATCH, add_special_tokens=True, max_tokens=most)
    assert sum(tokenized_sizes) <= 8 * most


def test_counted_tokens_equal_encoded_tokens(demo: Path):
    """Decoding many ids returns the original text."""
    text = TextModel.load(demo)
    long = "Tell me a story, in 7 parts. \u00e9\U0001f600\n" * 500
    ids = text.encode(long, add_special_tokens=False)
    assert text.count_tokens(long) == len(ids) and ids == text.tokenizer.encode(long, add_special_tokens=False).ids
    assert text.decode(ids) == long
