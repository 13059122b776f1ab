"""Engine on a fake model, driven step by step, and the checks that must hold at the end of every history."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from itertools import pairwise

from app.streams.timeline import IntakeTimeline, RequestTimeline
from engine.config import EngineConfig
from engine.engine import Engine, Preparation
from engine.errors import RequestRefused
from engine.scheduling.costs import Costs
from engine.scheduling.integrity import check_integrity
from engine.scheduling.policies import make_policy
from engine.scheduling.scheduler import Scheduler
from engine.types import EndEvent, FinishReason, Phase, PreemptionMode, Request, SamplingParams, StatusEvent, TokenEvent
from tests.engine.scheduling.test_scheduler_machine import model_info
from tests.fakes import MemoryRunner, MemoryStore, text_alone

PAGE_SIZE = 4
STEP_SECONDS = 0.01


class History:
    """Driver of one history: requests arrive, are aborted and preempted, and steps run. `end` checks all guarantees.

    disk: contents of the pages on disk, which outlive the engine.
    """

    def __init__(
        self,
        *,
        slots: int,
        pages: int,
        host: int = 8,
        swap_speed: float = 1e9,
        row_seconds: float = 0.0,
        runs_ahead: bool = False,
        nan_tokens: Collection[int] = (),
        max_len: int = 64,
        disk: dict[bytes, list[int]] | None = None,
        **options,
    ) -> None:
        options = {"max_num_batched_tokens": slots + 4, "page_size": PAGE_SIZE, "min_share": 2} | options
        self.config = EngineConfig(model="fake", max_num_seqs=slots, **options).validate()
        self.now = 0.0
        policy = make_policy(self.config, Costs(swap_speed, 100.0, STEP_SECONDS, row_seconds))
        self.scheduler = Scheduler(self.config, policy, num_pages=pages, host_pages=host, max_len=max_len)
        runner = MemoryRunner(pages, host, PAGE_SIZE, runs_ahead=runs_ahead, nan_tokens=nan_tokens)
        self.store = MemoryStore(runner.host, {} if disk is None else disk)
        if disk is not None:
            self.scheduler.kv_manager.use_disk(self.store, pages_per_step=2)
        self.preparing: list[tuple[Request, Preparation]] = []  # requests whose pages are read from disk
        info = model_info(pages, slots, max_model_len=max_len)
        self.engine = Engine(self.config, info, self.scheduler, runner, clock=lambda: self.now)
        self.texts: dict[tuple[str, int], list[int]] = defaultdict(list)
        self.expected: dict[tuple[str, int], list[int]] = {}
        self.ends: dict[tuple[str, int], FinishReason] = {}
        self.errors: dict[str, tuple[str, str]] = {}  # code and message
        self.audits: dict[str, RequestTimeline] = {}
        self.may_be_truncated: set[tuple[str, int]] = set()
        self.broken: set[tuple[str, int]] = set()  # their context reaches a token without logits (NaN)
        self.nan_tokens = nan_tokens
        self.statuses: dict[str, list[StatusEvent]] = defaultdict(list)
        self.arrived = 0

    def arrive(
        self,
        prompt: list[int],
        tokens: int,
        *,
        stop: tuple[int, ...] = (),
        has_stop_strings: bool = False,
        grammar: str | None = None,
        **more,
    ) -> str:
        """Submit a request and return its ID, or "" if it was refused."""
        self.arrived += 1
        name = f"r{self.arrived}"
        sampling = SamplingParams(
            max_tokens=tokens, stop_token_ids=stop, has_stop_strings=has_stop_strings, grammar=grammar
        )
        request = Request(id=name, prompt=tuple(prompt), sampling=sampling, **more)
        try:
            preparation = self.engine.prepare(request)
            if preparation is None:
                self.engine.submit(request)
        except RequestRefused:
            assert len(prompt) + tokens > self.engine.info.num_pages * PAGE_SIZE
            return ""
        self.audits[name] = RequestTimeline(request.n, IntakeTimeline(self.now), self.now)
        if preparation is not None:
            self.preparing.append((request, preparation))
            for choice in range(request.n):
                self.audits[name].add(
                    StatusEvent(name, choice, Phase.QUEUED, cause=preparation.cause, monotonic_time=self.now)
                )
        for choice in range(request.n):
            text = text_alone(prompt, choice, tokens, stop, nan_tokens=self.nan_tokens)
            self.expected[name, choice] = text
            if len(text) < tokens and not (text and text[-1] in stop):
                self.broken.add((name, choice))
            if request.deadline is not None:
                self.may_be_truncated.add((name, choice))
        return name

    def abort(self, name: str) -> None:
        """Abort a request, as after a disconnect."""
        self.may_be_truncated |= {(name, sequence.choice) for sequence in self.scheduler.requests.get(name, ())}
        self.engine.abort(name)
        for request, preparation in self.preparing:
            if request.id == name:
                self.preparing.remove((request, preparation))
                self.ends[name, 0] = FinishReason.ABORT
                self.audits[name].add(StatusEvent(name, 0, Phase.ENDED, monotonic_time=self.now))
                self.may_be_truncated.add((name, 0))
                break

    def pause(self, at: int, mechanism: PreemptionMode) -> None:
        """Preempt the running sequence with index `at`."""
        sequence = self.scheduler.running[at]
        if mechanism is PreemptionMode.SWAP and len(sequence.page_table) > self.scheduler.kv_manager.host.available:
            mechanism = PreemptionMode.RECOMPUTE
        self.scheduler.preempt(sequence, self.now, mechanism=mechanism)

    def step(self) -> None:
        """Run one step and check integrity."""
        self.now += STEP_SECONDS
        for request, preparation in list(self.preparing):
            if preparation.work.done():
                self.preparing.remove((request, preparation))
                self.engine.submit(request)
        for event in self.engine.step():
            key = (event.request_id, event.choice)
            assert key not in self.ends, "nothing follows a terminal event"
            if isinstance(event, StatusEvent):
                self.audits[event.request_id].add(event)
                self.statuses[event.request_id].append(event)
            elif isinstance(event, TokenEvent):
                self.texts[key].append(event.token_id)
            if isinstance(event, EndEvent) and event.finish is FinishReason.ERROR:
                self.errors[event.request_id] = event.code, event.message
            if isinstance(event, (TokenEvent, EndEvent)) and event.finish is not None:
                self.ends[key] = event.finish
        check_integrity(self.scheduler)

    def end(self) -> None:
        """Run to completion: every request finishes with the text of a run without a batch, and no resource is left
        allocated."""
        self.store.is_slow = False
        for _ in range(4000):  # every step computes at least one token; 4,000 is more than enough
            if not self.engine.has_work and not self.preparing and self.engine.seconds_to_step() is None:
                break
            if self.scheduler.has_work:
                self.now = self.scheduler.next_step_at(self.now)
            self.step()
        self.step()
        assert not self.engine.has_work, "no progress although arrivals stopped"
        assert self.ends.keys() == self.expected.keys()
        for key, expected in self.expected.items():
            if key in self.may_be_truncated:
                assert expected[: len(self.texts[key])] == self.texts[key]
            else:
                assert self.texts[key] == expected, key
                assert (self.ends[key] is FinishReason.ERROR) == (key in self.broken), key
        for audit in self.audits.values():
            for intervals in audit.choices:
                assert intervals[0].began == audit.arrived
                assert all(a.ended == b.began for a, b in pairwise(intervals)), intervals
                assert intervals[-1].ended is not None, intervals
                waits = [i for i in intervals if i.phase in (Phase.QUEUED, Phase.PAUSED)]
                assert all(i.cause is not None for i in waits), "every wait has a reported cause"
        assert self.scheduler.kv_manager.pool.held == 0
        assert self.scheduler.kv_manager.host.used == 0
