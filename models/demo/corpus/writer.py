"""The writer: a seeded source of choices, and the rules every prompt and answer goes through.

Owns the random draws, the rough edges of what people type (lower case, missing punctuation, slips of the finger), and the
split between prompts for training and prompts kept back for tests. Knows nothing about any kind of conversation.
"""

import hashlib
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")

HELD_OUT_SHARE = 20  # one prompt in this many is kept back
ALWAYS_TRAINED_WORDS = 3  # a prompt of so few words ("hi") has no paraphrases to generalise from
SLOT = re.compile(r"(\{\w+\})")
IMPERATIVES = {
    "Tell", "Write", "Give", "Explain", "Count", "Show", "Make", "List", "Describe", "Translate", "Name", "Compose",
    "Say", "Create", "Draw", "Define", "Calculate", "Work", "Find", "Spell", "Help", "Compare", "Add", "Multiply",
    "Subtract", "Invent",
}  # fmt: skip
POLITE = ("please ", "can you ", "could you ", "could you please ", "can you please ", "I want you to ", "would you ")


class Redraw(Exception):
    """This draw fell on the other side of the split; draw again."""


def is_held_out(prompt: str) -> bool:
    """Whether a prompt belongs to the tests: decided by its letters and digits alone, never by a list."""
    words = re.findall(r"[a-z0-9]+", prompt.lower())
    if len(words) <= ALWAYS_TRAINED_WORDS and "+" not in prompt and "-" not in prompt:
        return False
    return hashlib.sha256(" ".join(words).encode()).digest()[0] % HELD_OUT_SHARE == 7


@dataclass(frozen=True)
class Exchange:
    """One question and its answer, with the variants that a follow-up may ask for ("" where there is none)."""

    kind: str
    prompt: str
    answer: str
    short: str = ""
    long: str = ""
    points: tuple[str, ...] = ()
    again: Callable[["Writer"], str] | None = None
    subject: str = ""  # what the request names, for whoever judges the answer


class Writer(random.Random):
    """A random.Random with a side of the split: held_out=False writes training text, True writes test prompts."""

    def __init__(self, seed: int, *, held_out: bool = False, sloppiness: float = 1.0) -> None:
        super().__init__(seed)
        self.held_out = held_out
        self.sloppiness = sloppiness

    def pick(self, options: Sequence[T]) -> T:
        return options[int(self.random() * len(options))]

    def chance(self, probability: float) -> bool:
        return self.random() < probability

    def some(self, options: Sequence[T], count: int) -> list[T]:
        """count different options, in random order."""
        return self.sample(list(options), count)

    def run_of(self, options: Sequence[T], count: int) -> list[T]:
        """count neighbours, from a random place on and round the end: an order that a small model can learn."""
        start = self.randrange(len(options))
        return [options[(start + i) % len(options)] for i in range(count)]

    def ask(self, templates: Sequence[str], **slots: object) -> str:
        """A prompt on this writer's side of the split, roughened outside its slots. Raises Redraw if there is none."""
        for _ in range(12 if not self.held_out else 60):
            prompt = self.roughen(self.politely(self.pick(templates))).format(**slots)
            if is_held_out(prompt) == self.held_out:
                return prompt
        raise Redraw

    def politely(self, template: str) -> str:
        first, _, rest = template.partition(" ")
        if first not in IMPERATIVES or not self.chance(0.3):
            return template
        if self.chance(0.3):
            return template.rstrip(".") + self.pick((" please", ", please", " please."))
        lead = self.pick(POLITE)
        ending = "?" if lead.startswith(("can", "could", "would")) else "."
        return lead[0].upper() + lead[1:] + first.lower() + " " + rest.rstrip(".") + ending

    def roughen(self, template: str) -> str:
        """What a hurried person types; the text inside {slots} stays as it is."""
        if self.chance(0.5 * self.sloppiness):
            template = "".join(p if SLOT.fullmatch(p) else p.lower() for p in SLOT.split(template))
        if self.chance(0.5 * self.sloppiness):
            template = template.rstrip(".?!")
        if self.chance(0.3 * self.sloppiness):
            template = template.replace("'", "")
        if self.chance(0.12 * self.sloppiness):
            template = self.slip(template)
        return template

    def slip(self, template: str) -> str:
        """One slip of the finger in one longer word outside the slots."""
        pieces = SLOT.split(template)
        words = [(i, m) for i, p in enumerate(pieces) if not SLOT.fullmatch(p) for m in re.finditer(r"[A-Za-z]{4,}", p)]
        if not words:
            return template
        index, match = self.pick(words)
        at = self.randrange(match.start() + 1, match.end() - 1)
        text = pieces[index]
        swapped = text[:at] + text[at + 1] + text[at] + text[at + 2 :]
        pieces[index] = self.pick((swapped, text[:at] + text[at + 1 :], text[:at] + text[at] + text[at:]))
        return "".join(pieces)


def an(phrase: str) -> str:
    """The phrase with its indefinite article."""
    return ("an " if phrase[0].lower() in "aeiou" else "a ") + phrase


def capital(text: str) -> str:
    return text[0].upper() + text[1:]


def listing(items: Sequence[str]) -> str:
    """'a, b and c'."""
    return items[0] if len(items) == 1 else ", ".join(items[:-1]) + " and " + items[-1]


def bullets(items: Sequence[str]) -> str:
    return "\n".join(f"- {item}" for item in items)


def numbered(items: Sequence[str]) -> str:
    return "\n".join(f"{i}. {item}" for i, item in enumerate(items, 1))
