"""Streams, events and graphs: work that is queued, and when it is done."""

from __future__ import annotations

import random
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum

import torch
from torch.utils._python_dispatch import _disable_current_modes

Work = Callable[[], object]


class Refused(RuntimeError):
    """What a real device does not do, or not without waiting where nothing may wait."""


class Pace(Enum):
    """How far the device is behind what it is told."""

    AT_ONCE = "at-once"  # never
    AT_LAST = "at-last"  # nothing is done before somebody waits for it
    BY_CHANCE = "by-chance"  # any stream may do any number of things at any time


@dataclass(eq=False)
class Mark:
    """A place in a stream."""

    stream: Stream
    is_reached: bool = False


@dataclass(eq=False)
class Memory:
    """What tensors that share it are in. When none of them is left, others get it who are made on the stream on which
    it was had; `known_to`: streams that this waits for."""

    home: Stream
    known_to: set[Stream] = field(default_factory=set)


@dataclass(eq=False)
class Item:
    """One thing to do, once `after` is reached."""

    work: Work
    after: Mark | None = None
    memories: tuple[weakref.ref[Memory], ...] = ()  # that it reads or writes


@dataclass(eq=False)
class Stream:
    """What is done in order."""

    items: deque[Item] = field(default_factory=deque)


@dataclass(eq=False)
class Graph:
    """What was captured, to be done again and again."""

    items: list[Item] = field(default_factory=list)

    def work(self) -> None:
        for item in self.items:
            item.work()


class Machine:
    """One device and what it was told."""

    def __init__(self, pace: Pace, seed: int = 0) -> None:
        self.current = Stream()
        self.may_wait = True  # the host, for what says nothing of waiting
        self._streams = [self.current]
        self._pace = pace
        self._random = random.Random(seed)
        self._captured: Graph | None = None
        self._lost = ""  # memory that was given away while it was used

    def new_stream(self) -> Stream:
        self._streams.append(Stream())
        return self._streams[-1]

    def new_memory(self) -> Memory:
        """For tensors made on the current stream. What a capture makes is in memory of the graph's, whoever is left."""
        memory = Memory(self.current)
        if self._captured is not None:
            return memory
        weakref.finalize(memory, self._give_away, weakref.ref(memory), memory.home, memory.known_to).atexit = False
        return memory

    def tell(self, work: Work, memories: Iterable[Memory] = (), after: Mark | None = None) -> None:
        """To the current stream, or to the graph that is captured from it."""
        if self._captured is not None:
            if after is not None:
                raise Refused("a stream that is captured waits for one that is not")
            self._captured.items.append(Item(work))
            return
        self.current.items.append(Item(work, after, tuple(map(weakref.ref, memories))))
        self._go_on()

    def mark(self, stream: Stream) -> Mark:
        """That is reached when all that `stream` was told before is done."""
        self.refuse_in_capture("an event is recorded")
        mark = Mark(stream)

        def reach() -> None:
            mark.is_reached = True

        stream.items.append(Item(reach))
        self._go_on()
        return mark

    @contextmanager
    def on(self, stream: Stream) -> Iterator[None]:
        """While it lasts, that stream is told."""
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before

    @contextmanager
    def capture(self, graph: Graph, stream: Stream) -> Iterator[None]:
        """While it lasts, `graph` takes what the stream is told, and nobody does anything."""
        self.refuse_in_capture("a capture begins")
        self.wait_for_all()
        self._captured = graph
        try:
            with self.on(stream):
                yield
        finally:
            self._captured = None

    def refuse_in_capture(self, what: str) -> None:
        """Raises Refused if there is one."""
        if self._captured is not None:
            raise Refused(f"{what} while a graph is captured")

    def wait_in_passing(self, what: str) -> None:
        """The host waits for the current stream because of `what`, which says nothing of waiting. Raises Refused where
        it may not."""
        if not self.may_wait:
            raise Refused(f"{what} waits for the device")
        self.refuse_in_capture(what)
        self.wait_for(self.mark(self.current))

    def wait_for(self, mark: Mark) -> None:
        """What must come before it is done, and nothing else."""
        self.refuse_in_capture("the host waits")
        while not mark.is_reached:
            self._do(mark.stream)
        if self._lost:
            raise Refused(self._lost)

    def wait_for_all(self) -> None:
        """Everything is done."""
        for stream in self._streams:
            self.wait_for(self.mark(stream))

    def _do(self, stream: Stream) -> None:
        item = stream.items[0]
        if item.after is not None:
            self.wait_for(item.after)
        stream.items.popleft()
        with torch.inference_mode(), _disable_current_modes():
            item.work()

    def _go_on(self) -> None:
        if self._pace is Pace.AT_ONCE:
            for stream in self._streams:
                while stream.items:
                    self._do(stream)
        elif self._pace is Pace.BY_CHANCE and self._random.random() < 0.2:
            stream = self._random.choice(self._streams)
            for _ in range(self._random.randrange(40)):
                if stream.items:
                    self._do(stream)

    def _give_away(self, memory: weakref.ref[Memory], home: Stream, known_to: set[Stream]) -> None:
        for stream in self._streams:
            if stream is not home and stream not in known_to and any(memory in item.memories for item in stream.items):
                self._lost = "memory was given to others while a stream used it on which it was not had (record_stream)"
