"""Fakes shared by the test suite."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from app.admission.event_pacer import EventPacer
from app.admission.kept_sessions import KeptSessions
from app.admission.tenants import Tenant
from app.errors import ApiError
from app.generation.request import GenerationRequest
from app.streams.stream_log import ChoiceFinished, Failure, Record, StreamLog, Usage
from app.streams.timeline import IntakeTimeline
from engine.config import EngineConfig
from engine.drafting.lookup import Draft, Lookup
from engine.ipc import ChannelClosed, FromEngine, ToEngine
from engine.prefixes import is_mark
from engine.scheduling.batch import Batch, Chunk, Join, Sampled, StepOutcome
from engine.scheduling.constraint import NO_DRAFTS, NO_TOKEN_ALLOWED, ConstraintFailure, Drafts
from engine.scheduling.page_store import MovedPage, PageRun

NAN_MARK = -9  # stored in a page instead of a token


class CrashInjector:
    """Fault injection for the fake engines of a test.

    An engine crashes after its entry of `steps` (one per engine), when `is_killed` is set, or when it computes a prompt
    that contains `poison_token`. Each step sleeps for 2 ms.
    """

    def __init__(self, steps: Iterable[int] = (), poison_token: int = -1) -> None:
        self._steps = iter(steps)
        self._poison_token = poison_token
        self.engines_started = 0
        self.is_killed = False
        self._left = 0

    def start_engine(self) -> None:
        """Reset the state for the next engine."""
        self.engines_started += 1
        self.is_killed = False
        self._left = next(self._steps, -1)

    def step(self, batch: Batch, tokens: dict[int, list[int]]) -> None:
        """Run before each step; raise `ChannelClosed` if the engine shall die."""
        time.sleep(0.002)
        self._left -= 1
        is_poisoned = any(self._poison_token in tokens[c.slot][c.start : c.start + c.length] for c in batch.chunks)
        if self._left == -1 or self.is_killed or is_poisoned:
            raise ChannelClosed  # same symptom as a killed process


class FakeConstraint:
    """A constraint that allows every token. The test sets whether its mask is ready, and the time that masks took.

    It takes drafts as they are proposed.
    """

    def __init__(self) -> None:
        self.is_active = self.is_ready = True
        self.failure: ConstraintFailure | None = None
        self.prepared = 0
        self.seconds = 0.0
        self.drafts = NO_DRAFTS

    def consume(self, token_id: int) -> None:
        """Forget the drafts."""
        self.drafts = NO_DRAFTS

    def prepare_mask(self, proposal: Sequence[int] = (), limit: int = 0) -> None:
        """Count the call."""
        self.prepared += 1
        self.drafts = Drafts(tuple(proposal[:limit]), (False,) * len(proposal[:limit]))

    def take_seconds(self) -> float:
        """Return `seconds` once."""
        seconds, self.seconds = self.seconds, 0.0
        return seconds

    def write_masks(self, address: int, size: int, count: int = 1) -> None:
        """Refuse: a fake runner needs no mask."""
        raise NotImplementedError


class MemoryRunner:
    """A runner whose "keys and values" are the tokens themselves, kept in real pages.

    The next token is a hash of the tokens that are read back through the page table. A page that is shared, swapped,
    copied or reused wrongly therefore changes the text. `text_alone` returns the expected text.

    A chunk that contains one of `nan_tokens` is stored as NaN, and so is everything that reads it.
    """

    def __init__(
        self,
        num_pages: int,
        host_pages: int,
        page_size: int,
        vocab_size: int = 1000,
        runs_ahead: bool = False,
        nan_tokens: Collection[int] = (),
        device_was_idle: bool = True,  # a step takes no time
        crash_injector: CrashInjector | None = None,
        look_up: Callable[[list[int], int, int], Draft] | None = None,  # by tokens, choice and limit
    ) -> None:
        self.runs_ahead = runs_ahead
        self.device_was_idle = device_was_idle
        self.nan_tokens = frozenset(nan_tokens)
        self.page_size = page_size
        self.vocab_size = vocab_size
        self.pages: list[list[int]] = [[-1] * page_size for _ in range(num_pages)]
        self.host: list[list[int]] = [[-1] * page_size for _ in range(host_pages)]
        self.joins: dict[int, Join] = {}
        self.tokens: dict[int, list[int]] = {}
        self.tables: dict[int, list[int]] = {}
        self.swapping_in: list[tuple[int, list[int]]] = []
        self.most_tokens = 0
        self.crash_injector = crash_injector
        self.look_up = look_up or look_up_own

    def swapped_out(self) -> Callable[[], None]:
        """Return a function that does nothing: pages are moved at once."""
        return lambda: None

    @property
    def max_draft_rows(self) -> int:
        """Return the largest number of rows of a step with drafts."""
        return 64

    def prefault_pages(self, pages: int) -> bool:
        """Return False: there is no memory to prefault."""
        return False

    def launch(self, batch: Batch) -> Callable[[], StepOutcome]:
        """Apply the moves of `batch` in the order that `Batch` and `Moves` define, then compute the step."""
        for page, content in self.swapping_in:
            self.pages[page] = content
        assert len({host for _, host in batch.swap_out}) == len(batch.swap_out), "two swap-outs into one host page"
        for page, host in batch.swap_out:
            self.host[host] = list(self.pages[page])
        copied = [list(self.pages[source]) for source, _ in batch.copies]
        for (_, target), content in zip(batch.copies, copied, strict=True):
            self.pages[target] = content
        self.swapping_in = [(page, list(self.host[host])) for host, page in batch.swap_in]
        for page, _ in self.swapping_in:
            self.pages[page] = [-2] * self.page_size  # unreadable until the next step
        for slot, index, page in batch.new_pages:
            assert len(self.tables[slot]) == index
            self.tables[slot].append(page)
        for join in batch.joins:
            self.joins[join.slot], self.tokens[join.slot] = join, list(join.tokens)
            self.tables[join.slot] = list(join.page_table)
        self.most_tokens = max(self.most_tokens, batch.num_tokens)
        if self.crash_injector is not None:
            self.crash_injector.step(batch, self.tokens)
        work = [(slot, len(self.tokens[slot]) - 1, 1) for slot in (*batch.decodes, *(c.slot for c in batch.drafted))]
        work += [(chunk.slot, chunk.start, chunk.length) for chunk in batch.chunks if chunk.samples <= 1]
        for slot, start, _ in work[len(batch.decodes) :]:  # the cache holds the request's own preceding tokens
            read, own = self._read(slot, start), self.tokens[slot][:start]
            assert read == own or not self.nan_tokens.isdisjoint(own), f"slot {slot} reads foreign tokens: {read}"
        for chunk in batch.drafted:  # without drafts in flight, the scheduler knows the length
            length = len(self.tokens[chunk.slot])
            assert chunk.start + 1 <= length and (not chunk.drafts or chunk.start + 1 == length), (chunk, length)
        drafts = [self._drafts(chunk) for chunk in batch.drafted]
        for slot, start, length in work:
            tokens = self.tokens[slot][start : start + length]
            if NAN_MARK in self._read(slot, start) or not self.nan_tokens.isdisjoint(tokens):
                tokens = [NAN_MARK] * length
            for position, token in enumerate(tokens, start):
                page = self.tables[slot][position // self.page_size]
                self.pages[page][position % self.page_size] = token
        broken = tuple(
            chunk.samples <= 1 and NAN_MARK in self._read(chunk.slot, chunk.start + chunk.length)
            for chunk in batch.chunks
        )
        failed = {slot for slot, constraint in batch.constraints if constraint.failure is not None}
        sampled = (Sampled(NO_TOKEN_ALLOWED) if slot in failed else self._sample(slot) for slot in batch.sampled_slots)
        first = tuple(sampled)
        begin = len(first) - len(batch.drafted)
        further, looked_up = dict[int, tuple[Sampled, ...]](), dict[int, Draft]()
        for index, (chunk, draft) in enumerate(zip(batch.drafted, drafts, strict=True), begin):
            if tokens := self._follow(chunk.slot, draft.tokens):
                further[index] = tokens
            if not chunk.drafts:
                looked_up[index] = draft
        outcome = StepOutcome(first, broken, further=further, looked_up=looked_up)
        return lambda: outcome

    def _drafts(self, chunk: Chunk) -> Draft:
        """Return the drafts of a chunk, or those that its rows look up."""
        if chunk.drafts:
            return Draft(chunk.drafts, 0)
        return self.look_up(self.tokens[chunk.slot], self.joins[chunk.slot].choice, chunk.num_drafts)

    def _follow(self, slot: int, drafts: Sequence[int]) -> tuple[Sampled, ...]:
        """Write drafts to the pages of a slot, and return the tokens that count beyond the first."""
        further = list[Sampled]()
        counts = True
        for position, draft in enumerate(drafts, len(self.tokens[slot]) - 1):
            page = self.tables[slot][position // self.page_size]
            is_broken = draft in self.nan_tokens or NAN_MARK in self._read(slot, position)
            self.pages[page][position % self.page_size] = NAN_MARK if is_broken else draft
            counts = counts and self.tokens[slot][position] == draft and not is_broken  # which the next step reports
            if counts:
                further.append(self._sample(slot))
        return tuple(further)

    def _sample(self, slot: int) -> Sampled:
        if NAN_MARK in self._read(slot, len(self.tokens[slot])):
            self.tokens[slot].append(0)
            return Sampled(-1)
        token = next_token(self._read(slot, len(self.tokens[slot])), self.joins[slot].choice, self.vocab_size)
        self.tokens[slot].append(token)
        return Sampled(token)

    def _read(self, slot: int, length: int) -> list[int]:
        """Return the contents of the slot's pages at the first `length` positions."""
        size, table = self.page_size, self.tables[slot]
        return [self.pages[table[i // size]][i % size] for i in range(length)]


def look_up_own(tokens: list[int], choice: int, limit: int) -> Draft:
    """Return a draft from a text itself."""
    lookup = Lookup(tokens)
    lookup.index(len(tokens))
    return lookup.draft(limit)


class MemoryStore:
    """`PageStore` in memory, of one `MemoryRunner`. Pages are moved when `take_moved` is called, or by `move`.

    contents: of the pages, which outlive the store.
    """

    def __init__(self, host: list[list[int]], contents: dict[bytes, list[int]], seconds_per_page: float = 0.0) -> None:
        self.contents = contents
        self.seconds_per_page = seconds_per_page
        self.is_slow = False  # moves nothing until `move` is called
        self.is_broken = False  # no page can be written or read
        self.runs: list[PageRun] = []
        self.marked: set[bytes] = set()
        self.touched: list[bytes] = []  # by the last call
        self._reported: set[bytes] = set()
        self._host = host
        self._writes: list[PageRun] = []
        self._reads: list[tuple[bytes, int]] = []
        self._moved: list[MovedPage] = []

    def __contains__(self, digest: object) -> bool:
        return digest in self.contents

    def __len__(self) -> int:
        return len(self.contents)

    def latest(self, limit: int) -> list[bytes]:
        """Return the pages that were written last."""
        return list(self.contents)[-limit:] if limit else []

    def touch(self, digests: Sequence[bytes]) -> None:
        """Record which pages of the chain are stored. No page is dropped."""
        self.touched = [digest for digest in digests if digest in self.contents]

    def write(self, run: PageRun, wait: Callable[[], None]) -> None:
        """Begin to write pages."""
        wait()
        self._take(run.host_pages)
        self.runs.append(run)
        self.marked |= {digest for index, digest in enumerate(run.digests, run.first) if is_mark(index)}
        self._writes.append(run)

    def read(self, pages: Sequence[tuple[bytes, int]]) -> None:
        """Begin to read pages."""
        self._take([host_page for _, host_page in pages])
        self._reads += pages

    def _take(self, host_pages: Sequence[int]) -> None:
        taken = [page for _, page in self._reads] + [page for run in self._writes for page in run.host_pages]
        assert len({*taken, *host_pages}) == len(taken) + len(host_pages), "a host page is moved twice at the same time"

    def take_moved(self) -> list[MovedPage]:
        """Return the pages that were moved since the last call."""
        if not self.is_slow:
            self.move()
        moved, self._moved = self._moved, []
        return moved

    def move(self) -> None:
        """Move all pages: their contents are those of the host pages at this time."""
        for digest, host_page in self._reads:
            has_succeeded = digest in self.contents and not self.is_broken
            # A page that could not be read has the contents of nothing.
            self._host[host_page] = list(self.contents[digest]) if has_succeeded else [-3] * len(self._host[host_page])
            self._moved.append(MovedPage(digest, host_page, True, has_succeeded))
        for run in self._writes:
            for digest, host_page in zip(run.digests, run.host_pages, strict=True):
                if not self.is_broken:
                    self.contents[digest] = list(self._host[host_page])
                self._moved.append(MovedPage(digest, host_page, False, not self.is_broken))
        self._reads, self._writes = [], []

    def take_marks(self) -> tuple[list[bytes], list[bytes]]:
        """Return the digests of marks that were gained and lost since the last call."""
        marks = {digest for digest in self.contents if digest in self.marked}
        gained, lost = marks - self._reported, self._reported - marks
        self._reported = marks
        return sorted(gained), sorted(lost)

    def read_seconds(self, pages: int) -> float:
        """Return the expected seconds for reading pages."""
        return pages * self.seconds_per_page


def next_token(tokens: Sequence[int], choice: int, vocab_size: int) -> int:
    """Return the next token of the fake model, which depends on every token of the context."""
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
    """Return the output of `MemoryRunner` for a request that runs alone."""
    tokens = list(prompt)
    while len(tokens) - len(prompt) < max_tokens and frozenset(nan_tokens).isdisjoint(tokens):
        tokens.append(next_token(tokens, choice, vocab_size))
        if tokens[-1] in stop:
            break
    return tokens[len(prompt) :]


class TransformersManager:
    """Fake of transformers' continuous batching manager that returns one answer per entry of `lengths`, then stops."""

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


@dataclass
class FakeSession:
    """Session of a given size that can lose its connection."""

    id: str
    tenant_id: str = "anna"
    owner: str = "anna"
    size: int = 0
    sessions: KeptSessions[FakeSession] | None = None
    has_ended: bool = False
    is_displaced: bool = False

    async def displace(self) -> None:
        """Release the session at once."""
        assert self.sessions is not None
        self.is_displaced = True
        self.sessions.release(self, keeps=True)

    def end(self) -> None:
        """Record the call."""
        self.has_ended = True


class FakeGeneration:
    """Generation whose records the test writes."""

    def __init__(self, stream_id: str) -> None:
        self.log = StreamLog(stream_id, "epoch", "")

    def write(self, *records: Record) -> None:
        """Append records, unless the log is closed."""
        for record in records:
            if not self.log.is_closed:
                self.log.append(record)
        self.log.notify()

    def cancel(self) -> None:
        """End as a cancelled answer."""
        self.write(ChoiceFinished(0, "abort"), Usage(1, 1, 0))

    def fail(self, message: str, code: str) -> None:
        """End with an error."""
        self.write(Failure(message, code, None))

    def on_reader_left(self) -> None:
        """Do nothing: the answer goes on."""


class FakeQueue:
    """Queue of work for threads, which does it at once and records its sizes."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    async def run(self, work: Callable[[], Any], caller: object, size: int) -> Any:
        """Do the work."""
        self.sizes.append(size)
        return work()


class FakeService:
    """Service for realtime sessions, with the generations that it has started."""

    def __init__(self) -> None:
        self.pacer = EventPacer()
        self.settings = SimpleNamespace(model_name="fake")
        self.prompts = SimpleNamespace(body_queue=FakeQueue())
        self.generations: dict[str, FakeGeneration] = {}
        self.requests: list[GenerationRequest] = []

    def check_model(self, name: str | None) -> None:
        """Raise `ApiError` (404) for another model than `fake`."""
        if name not in (None, "fake"):
            raise ApiError(404, f"the model {name!r} does not exist", param="model", code="model_not_found")

    async def generate(self, request: GenerationRequest, tenant: Tenant, intake: IntakeTimeline) -> FakeGeneration:
        """Start a generation without records."""
        assert request.stream_id is not None
        self.requests.append(request)
        generation = self.generations[f"resp_{request.stream_id}"] = FakeGeneration(request.stream_id)
        return generation


class FakeTransport:
    """Channel to an engine of which a test sends the messages."""

    exit_description = ""
    heartbeat_count = 0

    def __init__(self, on_message: Callable[[FromEngine], Iterator[None]], *, shares_clock: bool = True) -> None:
        self.shares_clock = shares_clock
        self.replacement = "another one is started"
        self.sent: list[ToEngine] = []
        self._on_message = on_message

    async def start(self, config: EngineConfig) -> None:
        """Do nothing; the test sends `Ready`."""

    def send(self, *messages: ToEngine) -> None:
        """Record the messages."""
        self.sent += messages

    def receive(self, message: FromEngine) -> None:
        """Deliver a message of the engine, with all of its events."""
        for _ in self._on_message(message):
            pass

    def abandon(self, why: str) -> None:
        """Fail the test, which has no watchdog."""
        raise AssertionError(why)

    async def close(self, grace_seconds: float) -> None:
        """Do nothing."""
