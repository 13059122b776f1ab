"""Streams, events and graphs: queued work, and when it executes."""

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
    """The operation is not possible on a real device, or would wait where waiting is forbidden."""


class Timing(Enum):
    """Lag of the device behind the host."""

    IMMEDIATE = "immediate"  # no lag
    LAZY = "lazy"  # work executes only when the host waits for it
    RANDOM = "random"  # any stream may execute any number of items at any time


@dataclass(eq=False)
class Mark:
    """Position in a stream."""

    stream: Stream
    is_reached: bool = False


@dataclass(eq=False)
class Memory:
    """Memory block shared by tensors. When the last of them is freed, the allocator may reuse the block for tensors of
    the stream that allocated it. `recorded_streams`: other streams that reuse waits for."""

    owner: Stream
    recorded_streams: set[Stream] = field(default_factory=set)


@dataclass(eq=False)
class Item:
    """Queued work item, which executes once `after` is reached."""

    work: Work
    after: Mark | None = None
    memories: tuple[weakref.ref[Memory], ...] = ()  # read or written by the item


@dataclass(eq=False)
class Stream:
    """Queue of items that execute in order."""

    items: deque[Item] = field(default_factory=deque)


@dataclass(eq=False)
class Graph:
    """Captured items, which can be replayed."""

    items: list[Item] = field(default_factory=list)

    def work(self) -> None:
        for item in self.items:
            item.work()


class Machine:
    """One device and its queued work."""

    def __init__(self, timing: Timing, seed: int = 0) -> None:
        self.current = Stream()
        self.may_wait_implicitly = True  # whether the host may wait implicitly
        self._streams = [self.current]
        self._timing = timing
        self._random = random.Random(seed)
        self._captured: Graph | None = None
        self._unsafe_reuse = ""  # error message: memory was reused while a stream still used it

    def new_stream(self) -> Stream:
        self._streams.append(Stream())
        return self._streams[-1]

    def new_memory(self) -> Memory:
        """Return memory for a tensor on the current stream. Memory of a capture belongs to the graph and is never
        reused."""
        memory = Memory(self.current)
        if self._captured is not None:
            return memory
        weakref.finalize(
            memory, self._check_reuse, weakref.ref(memory), memory.owner, memory.recorded_streams
        ).atexit = False
        return memory

    def enqueue(self, work: Work, memories: Iterable[Memory] = (), after: Mark | None = None) -> None:
        """Append work to the current stream, or to the graph that is being captured."""
        if self._captured is not None:
            if after is not None:
                raise Refused("a captured stream waits for a stream that is not captured")
            self._captured.items.append(Item(work))
            return
        self.current.items.append(Item(work, after, tuple(map(weakref.ref, memories))))
        self._advance()

    def mark(self, stream: Stream) -> Mark:
        """Return a mark that is reached when all work queued on `stream` so far is done."""
        self.refuse_in_capture("an event is recorded")
        mark = Mark(stream)

        def reach() -> None:
            mark.is_reached = True

        stream.items.append(Item(reach))
        self._advance()
        return mark

    @contextmanager
    def use_stream(self, stream: Stream) -> Iterator[None]:
        """Make `stream` the current stream inside the context."""
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before

    @contextmanager
    def capture(self, graph: Graph, stream: Stream) -> Iterator[None]:
        """Collect work for `stream` in `graph` inside the context, without executing it."""
        self.refuse_in_capture("a capture begins")
        self.wait_for_all()
        self._captured = graph
        try:
            with self.use_stream(stream):
                yield
        finally:
            self._captured = None

    def refuse_in_capture(self, operation: str) -> None:
        """Raise Refused during a capture."""
        if self._captured is not None:
            raise Refused(f"{operation} while a graph is captured")

    def wait_implicitly(self, operation: str) -> None:
        """Let the host wait for the current stream because of `operation`, which waits implicitly. Raise Refused where
        waiting is forbidden."""
        if not self.may_wait_implicitly:
            raise Refused(f"{operation} waits for the device")
        self.refuse_in_capture(operation)
        self.wait_for(self.mark(self.current))

    def wait_for(self, mark: Mark) -> None:
        """Execute the items that `mark` depends on, and no others."""
        self.refuse_in_capture("the host waits")
        while not mark.is_reached:
            self._execute_next(mark.stream)
        if self._unsafe_reuse:
            raise Refused(self._unsafe_reuse)

    def wait_for_all(self) -> None:
        """Execute all queued items."""
        for stream in self._streams:
            self.wait_for(self.mark(stream))

    def _execute_next(self, stream: Stream) -> None:
        item = stream.items[0]
        if item.after is not None:
            self.wait_for(item.after)
        stream.items.popleft()
        with torch.inference_mode(), _disable_current_modes():
            item.work()

    def _advance(self) -> None:
        if self._timing is Timing.IMMEDIATE:
            for stream in self._streams:
                while stream.items:
                    self._execute_next(stream)
        elif self._timing is Timing.RANDOM and self._random.random() < 0.2:
            stream = self._random.choice(self._streams)
            for _ in range(self._random.randrange(40)):
                if stream.items:
                    self._execute_next(stream)

    def _check_reuse(self, memory: weakref.ref[Memory], owner: Stream, recorded_streams: set[Stream]) -> None:
        for stream in self._streams:
            if (
                stream is not owner
                and stream not in recorded_streams
                and any(memory in item.memories for item in stream.items)
            ):
                self._unsafe_reuse = "memory was reused while another stream still used it (record_stream)"
