"""Long texts are tokenised in turn, and not at all where they could not be served."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import weakref
from pathlib import Path

import pytest

from app.audit import WORTH_TELLING, Intake
from app.encoding import PLACES, RESERVED, THREAD_FROM, Encoding
from app.text import TextModel
from app.turnstile import Turnstile
from engine.errors import ContextExceeded
from engine.types import Cause, ServiceClass

LONG = "a " * THREAD_FROM
PERSON, BULK = ServiceClass.INTERACTIVE, ServiceClass.BATCH
PLACES_OF_BULK = PLACES - RESERVED


class Slow(TextModel):
    """Tokenises when it is let, and remembers what."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.may_end = threading.Event()

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        self.begun.append(text[-1])
        self.may_end.wait(10.0)
        return [len(self.begun)]


async def started(count: int, slow: Slow) -> None:
    """Waits until so many are being tokenised."""
    while len(slow.begun) < count:
        await asyncio.sleep(0.001)


async def test_people_s_texts_come_first_and_whoever_has_left_costs_nothing():
    """Few are tokenised at once, of bulk fewer than of people; the others in the order of their classes, but for those
    who were cancelled."""
    slow = Slow()
    encoding = Encoding(slow)

    def come(name: str, service_class: ServiceClass) -> asyncio.Task[list[int]]:
        return asyncio.create_task(encoding.encode(LONG + name, service_class, add_special_tokens=True))

    first = [come(str(number), BULK) for number in range(PLACES_OF_BULK)]
    await started(PLACES_OF_BULK, slow)
    leaving, bulk, standard = come("l", BULK), come("b", BULK), come("s", ServiceClass.STANDARD)
    await asyncio.sleep(0.01)
    assert len(slow.begun) == PLACES_OF_BULK
    people = [come("p", PERSON) for _ in range(RESERVED + 1)]
    await started(PLACES, slow)
    await asyncio.sleep(0.01)
    assert slow.begun[PLACES_OF_BULK:] == RESERVED * ["p"] and encoding.coming == PLACES + 4
    leaving.cancel()
    slow.may_end.set()
    await asyncio.gather(*first, bulk, standard, *people)
    assert slow.begun[PLACES:] == ["p", "s", "b"]
    assert encoding.coming == 0


async def test_who_waits_for_others_texts_has_that_in_its_account():
    """And in nobody else's: the first ones wait for nobody."""
    slow = Slow()
    encoding = Encoding(slow)
    intakes = [Intake(time.monotonic()) for _ in range(PLACES + 1)]
    tasks = [
        asyncio.create_task(encoding.encode(LONG, PERSON, add_special_tokens=True, intake=intake)) for intake in intakes
    ]
    await started(PLACES, slow)
    await asyncio.sleep(2 * WORTH_TELLING)
    slow.may_end.set()
    await asyncio.gather(*tasks)
    causes = [[interval.cause for interval in intake.end(time.monotonic())] for intake in intakes]
    assert causes == [[None]] * PLACES + [[None, Cause.TEXTS, None]]


async def test_a_thread_that_goes_on_for_nobody_keeps_its_place():
    """Whoever leaves while a text of his is tokenised makes room when that is done, and not before."""
    slow = Slow()
    encoding = Encoding(slow)
    leaving = [asyncio.create_task(encoding.encode(LONG, PERSON, add_special_tokens=True)) for _ in range(PLACES)]
    await started(PLACES, slow)
    for task in leaving:
        task.cancel()
    person = asyncio.create_task(encoding.encode(LONG, PERSON, add_special_tokens=True))
    await asyncio.wait([*leaving, person], timeout=0.02)
    assert all(task.cancelled() for task in leaving) and len(slow.begun) == PLACES
    slow.may_end.set()
    await person
    assert encoding.coming == 0


async def test_a_refusal_after_its_caller_has_left_is_no_error():
    """The exception of work whose caller was cancelled is dropped, without an error in the log."""
    slow, reported = Slow(), []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context["message"]))

    def refuse() -> None:
        slow.encode(LONG)
        raise ContextExceeded("too long", param="prompt")

    turnstile = Turnstile(1)
    leaving = asyncio.create_task(turnstile.run(refuse))
    await started(1, slow)
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
            await Turnstile(1).run(refuse)
        except ContextExceeded:
            return True
        return False

    gc.disable()
    try:
        text = Text()
        alive = weakref.ref(text)
        assert await refused(text)
        del text
        async with asyncio.timeout(10):
            while alive() is not None:  # the thread drops the function a moment after its end
                await asyncio.sleep(0.001)
    finally:
        gc.enable()


async def test_who_is_cancelled_as_his_turn_comes_passes_it_on():
    """Or nobody would have it any more."""
    slow = Slow()
    encoding = Encoding(slow)
    tasks = [asyncio.create_task(encoding.encode(LONG, PERSON, add_special_tokens=True)) for _ in range(PLACES + 2)]
    await started(PLACES, slow)
    encoding._turnstile._pass_on()  # as a thread that has ended does
    tasks[PLACES].cancel()
    await started(PLACES + 1, slow)
    slow.may_end.set()
    assert len(await asyncio.gather(*tasks, return_exceptions=True)) == PLACES + 2
    assert tasks[PLACES].cancelled() and not tasks[-1].cancelled()


async def test_a_text_that_cannot_fit_is_not_tokenised(demo: Path, monkeypatch: pytest.MonkeyPatch):
    """It has a character more than all the longest tokens of a context."""
    text = TextModel.load(demo)
    longest = max(map(len, text.tokenizer.get_vocab()))
    most = THREAD_FROM // longest + 1
    fits = "a" * (most * longest)
    assert text.least_tokens(fits) == most
    monkeypatch.setattr(text, "count_tokens", lambda beginning: 0)
    encoding = Encoding(text)
    assert len(await encoding.encode(fits, BULK, add_special_tokens=True, most=most)) >= most
    monkeypatch.setattr(text, "encode", lambda *_, **__: pytest.fail("it was tokenised"))
    with pytest.raises(ContextExceeded, match=f"at least {most + 1} tokens; the model's context has {most}"):
        await encoding.encode(fits + "a" * longest, BULK, add_special_tokens=True, most=most)


async def test_a_text_that_is_too_long_is_refused_after_a_part_of_it(demo: Path, monkeypatch: pytest.MonkeyPatch):
    """A tokeniser's result for megabytes would hold the interpreter lock while it is created and freed."""
    text, most = TextModel.load(demo), 2048
    tokenised: list[int] = []
    count_tokens = text.count_tokens
    monkeypatch.setattr(text, "least_tokens", lambda text: 0)
    monkeypatch.setattr(text, "count_tokens", lambda part: tokenised.append(len(part)) or count_tokens(part))
    monkeypatch.setattr(text, "encode", lambda *_, **__: pytest.fail("all of it was tokenised"))
    with pytest.raises(ContextExceeded):
        await Encoding(text).encode("7" * 4_000_000, BULK, add_special_tokens=True, most=most)
    assert sum(tokenised) <= 8 * most


def test_tokens_are_counted_as_they_are_encoded(demo: Path):
    """And decoding many of them gives the text back as decoding few does."""
    text = TextModel.load(demo)
    long = "Tell me a story, in 7 parts. \u00e9\U0001f600\n" * 500
    ids = text.encode(long, add_special_tokens=False)
    assert text.count_tokens(long) == len(ids) and ids == text.tokenizer.encode(long, add_special_tokens=False).ids
    assert text.decode(ids) == long
