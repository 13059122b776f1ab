"""Repeating what somebody says, word for word. Owns the plainest kind of obedience: what goes in comes out."""

from models.demo.corpus.fact_tables import CAPITALS, COUNT_WORDS, OPPOSITES
from models.demo.corpus.stories import ANIMALS, HE_NAMES, PEOPLE, SHE_NAMES, THINGS, made_up
from models.demo.corpus.writer import Exchange, Writer, capital

ECHO_ASKS = (
    "Repeat after me: {x}", "Say {x}", "Please repeat: {x}", "Repeat this: {x}", "Repeat the words {x}", "Echo this: {x}",
    "Write exactly this: {x}", "Say the following: {x}", "Can you say {x}", "Just say {x}", "Copy this: {x}",
)  # fmt: skip
TWICE_ASKS = (
    "Say {x} twice.", "Write {x} two times.", "Repeat {x} twice.", "Give me {x} two times.", "Can you say {x} twice?",
)  # fmt: skip
BACKWARDS_ASKS = (
    "Reverse this list: {x}", "Say these words backwards: {x}", "Turn this list around: {x}",
    "Write these words in reverse order: {x}",
)  # fmt: skip
WORDS = (
    *ANIMALS, *PEOPLE, *SHE_NAMES, *HE_NAMES, *CAPITALS.values(), *COUNT_WORDS, *(word for pair in OPPOSITES for word in pair),
    *(word for thing in THINGS for word in thing.split()),
)  # fmt: skip


def words(w: Writer, count: int) -> list[str]:
    chosen = [w.pick((w.pick(WORDS), w.pick(WORDS), made_up(w), str(w.randrange(1000)))) for _ in range(count)]
    return [capital(word) if w.chance(0.1) else word for word in chosen]


def echo(w: Writer) -> Exchange:
    text = " ".join(words(w, w.randint(1, 8) if w.chance(0.7) else w.randint(9, 30)))
    return Exchange("echoes", w.ask(ECHO_ASKS, x=text), text)


def twice(w: Writer) -> Exchange:
    text = " ".join(words(w, w.randint(1, 2)))
    return Exchange("echoes", w.ask(TWICE_ASKS, x=text), f"{text} {text}")


def backwards(w: Writer) -> Exchange:
    chosen = words(w, w.randint(2, 5))
    return Exchange("echoes", w.ask(BACKWARDS_ASKS, x=", ".join(chosen)), ", ".join(reversed(chosen)))


MAKERS = ((echo, 6), (twice, 2), (backwards, 1))
