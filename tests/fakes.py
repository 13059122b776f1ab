"""The few fakes of the suite."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from engine.frames import ChannelClosed
from engine.scheduling.batch import Batch, Join, Outcome, Sampled

NAN = -9  # in place of a token, in a page


class Mortal:
    """Decides when the engines of a test die: each `after` so many steps, the next in turn; when `is_killed` is set;
    and of `poison`, a token of a prompt, whoever computes it. Their steps take a while."""

    def __init__(self, after: Iterable[int] = (), poison: int = -1) -> None:
        self._after = iter(after)
        self._poison = poison
        self.lives = 0
        self.is_killed = False
        self._left = 0

    def begin(self) -> None:
        """Another engine."""
        self.lives += 1
        self.is_killed = False
        self._left = next(self._after, -1)

    def step(self, batch: Batch, tokens: dict[int, list[int]]) -> None:
        """One step is about to be computed."""
        time.sleep(0.002)
        self._left -= 1
        is_poisoned = any(self._poison in tokens[c.slot][c.start : c.start + c.length] for c in batch.chunks)
        if self._left == -1 or self.is_killed or is_poisoned:
            raise ChannelClosed  # as quiet as a killed process


class MemoryRunner:
    """A runner whose "keys and values" are the tokens themselves, kept in real pages.

    Its next token is a hash of what it reads back through the page table, so a page that is shared, swapped, copied or
    reused wrongly changes the text. `text_alone` says what the text must be.

    What is computed in one piece with one of `nan_tokens`, and whatever reads it, is not a number.
    """

    def __init__(
        self,
        num_pages: int,
        host_pages: int,
        page_size: int,
        vocab_size: int = 1000,
        runs_ahead: bool = False,
        nan_tokens: Collection[int] = (),
        ran_dry: bool = True,  # a step takes no time
        mortal: Mortal | None = None,
    ) -> None:
        self.runs_ahead = runs_ahead
        self.ran_dry = ran_dry
        self.nan_tokens = frozenset(nan_tokens)
        self.page_size = page_size
        self.vocab_size = vocab_size
        self.pages: list[list[int]] = [[-1] * page_size for _ in range(num_pages)]
        self.host: list[list[int]] = [[-1] * page_size for _ in range(host_pages)]
        self.joins: dict[int, Join] = {}
        self.tokens: dict[int, list[int]] = {}
        self.tables: dict[int, list[int]] = {}
        self.coming: list[tuple[int, list[int]]] = []
        self.most_tokens = 0
        self.mortal = mortal

    def take_memory(self, pages: int) -> bool:
        """There is none to take."""
        return False

    def launch(self, batch: Batch) -> Callable[[], Outcome]:
        """Do as `Batch` and `Moves` say, in their order."""
        for page, content in self.coming:
            self.pages[page] = content
        assert len({host for _, host in batch.swap_out}) == len(batch.swap_out), "two swap-outs into one host page"
        for page, host in batch.swap_out:
            self.host[host] = list(self.pages[page])
        copied = [list(self.pages[source]) for source, _ in batch.copies]
        for (_, target), content in zip(batch.copies, copied, strict=True):
            self.pages[target] = content
        self.coming = [(page, list(self.host[host])) for host, page in batch.swap_in]
        for page, _ in self.coming:
            self.pages[page] = [-2] * self.page_size  # until the next step
        for slot, index, page in batch.grown:
            assert len(self.tables[slot]) == index
            self.tables[slot].append(page)
        for join in batch.joins:
            self.joins[join.slot], self.tokens[join.slot] = join, list(join.tokens)
            self.tables[join.slot] = list(join.page_table)
        self.most_tokens = max(self.most_tokens, batch.num_tokens)
        if self.mortal is not None:
            self.mortal.step(batch, self.tokens)
        work = [(slot, len(self.tokens[slot]) - 1, 1) for slot in batch.decodes]
        work += [(chunk.slot, chunk.start, chunk.length) for chunk in batch.chunks]
        for chunk in batch.chunks:  # what it attends to is there already, and its own
            read, own = self._read(chunk.slot, chunk.start), self.tokens[chunk.slot][: chunk.start]
            assert read == own or not self.nan_tokens.isdisjoint(own), f"slot {chunk.slot} reads another's {read}"
        for slot, start, length in work:
            tokens = self.tokens[slot][start : start + length]
            if NAN in self._read(slot, start) or not self.nan_tokens.isdisjoint(tokens):
                tokens = [NAN] * length
            for position, token in enumerate(tokens, start):
                page = self.tables[slot][position // self.page_size]
                self.pages[page][position % self.page_size] = token
        broken = tuple(NAN in self._read(chunk.slot, chunk.start + chunk.length) for chunk in batch.chunks)
        outcome = Outcome(tuple(self._sample(slot) for slot in batch.sampled), broken)
        return lambda: outcome

    def _sample(self, slot: int) -> Sampled:
        if NAN in self._read(slot, len(self.tokens[slot])):
            self.tokens[slot].append(0)
            return Sampled(-1)
        token = next_token(self._read(slot, len(self.tokens[slot])), self.joins[slot].choice, self.vocab_size)
        self.tokens[slot].append(token)
        return Sampled(token)

    def _read(self, slot: int, length: int) -> list[int]:
        """What its pages have at its first `length` positions."""
        size, table = self.page_size, self.tables[slot]
        return [self.pages[table[i // size]][i % size] for i in range(length)]


def next_token(tokens: Sequence[int], choice: int, vocab_size: int) -> int:
    """The made-up model: any change of any token of the context changes what follows."""
    digest = hashlib.blake2b(repr((list(tokens), choice)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % vocab_size


def text_alone(
    prompt: Sequence[int],
    choice: int,
    max_tokens: int,
    stop: Sequence[int] = (),
    vocab_size: int = 1000,
    nan_tokens: Collection[int] = (),
) -> list[int]:
    """What `MemoryRunner` yields for a request that has the machine to itself."""
    tokens = list(prompt)
    while len(tokens) - len(prompt) < max_tokens and frozenset(nan_tokens).isdisjoint(tokens):
        tokens.append(next_token(tokens, choice, vocab_size))
        if tokens[-1] in stop:
            break
    return tokens[len(prompt) :]


class TransformersManager:
    """Stands for transformers' continuous batching, and ends when it has given its answers: of `lengths`."""

    def __init__(self, lengths: list[int]) -> None:
        self._answers = [SimpleNamespace(generated_tokens=length * [0]) for length in lengths]
        self.asked: list[Any] = []
        self.running = False
        self.continuous_batching_config = SimpleNamespace(use_cuda_graph=(False, True), use_async_batching=True)
        self.batch_processor = SimpleNamespace(cache=SimpleNamespace(max_batch_tokens=512))
        self.model = SimpleNamespace(
            config=SimpleNamespace(_attn_implementation="paged|sdpa"),
            continuous_batching_context_manager=self._started,
        )

    @contextmanager
    def _started(self, **options: Any) -> Iterator[TransformersManager]:
        self.options, self.running = options, True
        yield self
        self.running = False

    def add_requests(self, inputs: list[list[int]], max_new_tokens: int) -> None:
        self.asked.append((inputs, max_new_tokens))

    def get_result(self, timeout: float) -> SimpleNamespace | None:
        return self._answers.pop(0) if self._answers else None

    def is_running(self) -> bool:
        return bool(self._answers)
