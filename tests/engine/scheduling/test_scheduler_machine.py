"""Random histories of the scheduler: integrity holds after every step, and every text equals that of a run alone."""

from __future__ import annotations

from collections import defaultdict
from functools import partial
from itertools import pairwise

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import replace

from app.streams.timeline import IntakeTimeline, RequestTimeline
from engine.config import EngineConfig
from engine.engine import Engine
from engine.errors import RequestRefused
from engine.scheduling.costs import Costs
from engine.scheduling.integrity import check_integrity
from engine.scheduling.policies import make_policy
from engine.scheduling.scheduler import Scheduler
from engine.scheduling.sequence import State
from engine.types import (
    EndEvent,
    FinishReason,
    ModelInfo,
    Phase,
    PreemptionMode,
    Request,
    SamplingParams,
    ServiceClass,
    StatusEvent,
    TokenEvent,
)
from tests.fakes import MemoryRunner, text_alone
from tests.profiles import examples

PAGE_SIZE = 4


def model_info(num_pages: int, slots: int, page_size: int = PAGE_SIZE, max_model_len: int = 64) -> ModelInfo:
    return ModelInfo(
        name="fake",
        vocab_size=1000,
        max_model_len=max_model_len,
        num_pages=num_pages,
        page_size=page_size,
        max_num_seqs=slots,
        device="cpu",
        dtype="none",
        parameters=0,
    )


class SchedulerMachine(RuleBasedStateMachine):
    """State machine in which requests arrive, are aborted, paused, moved to other classes, preempted and stepped in any
    order, and engines crash.
    """

    @initialize(
        slots=st.integers(1, 4),
        pages=st.integers(2, 14),
        host=st.sampled_from([0, 3, 30]),
        chunk=st.sampled_from([None, 1, 3]),
        budget=st.integers(1, 12),
        caching=st.booleans(),
        batching=st.sampled_from(["continuous", "continuous", "static"]),
        swap_speed=st.sampled_from([1.0, 1e9]),
        max_wait=st.sampled_from([0.02, 2.0, 20.0]),
        min_share=st.sampled_from([2, 3, 8]),
        runs_ahead=st.booleans(),
    )
    def build(self, slots, pages, host, chunk, budget, caching, batching, swap_speed, max_wait, min_share, runs_ahead):
        config = EngineConfig(
            model="fake",
            max_num_seqs=slots,
            max_num_batched_tokens=slots + budget,
            prefill_chunk=chunk,
            page_size=PAGE_SIZE,
            enable_prefix_caching=caching,
            batching=batching,
            max_wait_standard=max_wait,
            max_wait_batch=2 * max_wait,
            min_share=min_share,
        ).validate()
        self.now = 0.0
        self.start_engine = partial(self._start_engine, config, pages, host, swap_speed, runs_ahead)
        self.start_engine()
        self.texts: dict[tuple[str, int], list[int]] = defaultdict(list)
        self.ended: dict[tuple[str, int], str] = {}
        self.expected: dict[tuple[str, int], list[int]] = {}
        self.aborted: set[tuple[str, int]] = set()
        self.audits: dict[str, RequestTimeline] = {}
        self.last_phase: dict[tuple[str, int], Phase] = {}
        self.requests: dict[str, Request] = {}
        self.serial = 0

    def _start_engine(self, config, pages, host, swap_speed, runs_ahead):
        policy = make_policy(config, Costs(swap_speed, 100.0))
        scheduler = Scheduler(config, policy, num_pages=pages, host_pages=host, max_len=64)
        self.runner = MemoryRunner(pages, host, PAGE_SIZE, runs_ahead=runs_ahead)
        info = model_info(pages, config.max_num_seqs)
        self.engine = Engine(config, info, scheduler, self.runner, clock=lambda: self.now)

    @rule(
        shared=st.integers(0, 18),  # tokens that all prompts share, so that classes share pages
        own=st.lists(st.integers(0, 2), min_size=1, max_size=8),
        max_tokens=st.integers(1, 12),
        service_class=st.sampled_from(ServiceClass),
        n=st.sampled_from([1, 1, 1, 2, 3]),
        priority=st.integers(-1, 1),
        salt=st.sampled_from(["", "a"]),
        stops=st.booleans(),
        is_trial=st.sampled_from([False, False, True]),
    )
    def arrive(self, shared, own, max_tokens, service_class, n, priority, salt, stops, is_trial):
        self._submit(
            (*range(7, 7 + shared), *own),
            max_tokens,
            tuple(range(0, 1000, 9)) if stops else (),
            service_class=service_class,
            priority=priority,
            n=n,
            cache_salt=salt,
            is_trial=is_trial,
        )

    def _submit(self, prompt, max_tokens, stop=(), **fields):
        self.serial += 1
        sampling = SamplingParams(max_tokens=max_tokens, stop_token_ids=stop)
        request = Request(id=f"r{self.serial}", prompt=prompt, sampling=sampling, **fields)
        try:
            self.engine.submit(request)
        except RequestRefused:
            assert len(prompt) + max_tokens > self.engine.info.num_pages * PAGE_SIZE
            return
        self.requests[request.id] = request
        self.audits[request.id] = RequestTimeline(request.n, IntakeTimeline(self.now), self.now)
        for choice in range(request.n):
            self.expected[request.id, choice] = text_alone(prompt, choice, max_tokens, stop)

    @precondition(lambda self: self.engine.has_work)
    @rule(times=st.integers(1, 6))
    def step(self, times):
        for _ in range(times):
            self._step()

    @precondition(lambda self: self.engine.scheduler.running)
    @rule(data=st.data())
    def pause(self, data):
        sequence = data.draw(st.sampled_from(self.engine.scheduler.running))
        swap_fits = len(sequence.page_table) <= self.engine.scheduler.kv_manager.host.available
        mechanism = data.draw(st.sampled_from(list(PreemptionMode))) if swap_fits else PreemptionMode.RECOMPUTE
        self.engine.scheduler.preempt(sequence, self.now, mechanism=mechanism)

    @precondition(lambda self: self.engine.scheduler.requests)
    @rule(data=st.data(), is_paused=st.booleans(), service_class=st.sampled_from(ServiceClass))
    def change(self, data, is_paused, service_class):
        """Its client pauses or resumes a request, and moves it to a class."""
        request_id = data.draw(st.sampled_from(sorted(self.engine.scheduler.requests)))
        self._change(request_id, is_paused, service_class)

    def _change(self, request_id, is_paused, service_class):
        self.engine.change(request_id, is_paused=is_paused, service_class=service_class)
        request = self.requests[request_id]
        self.requests[request_id] = replace(request, is_paused=is_paused, service_class=service_class)

    @precondition(lambda self: self.engine.scheduler.requests)
    @rule(data=st.data())
    def abort(self, data):
        request_id = data.draw(st.sampled_from(sorted(self.engine.scheduler.requests)))
        choices = [s.choice for s in self.engine.scheduler.requests[request_id]]
        choice = data.draw(st.sampled_from([None, *choices]))
        self.aborted |= {(request_id, c) for c in choices if choice in (None, c)}
        self.engine.abort(request_id, choice)

    @precondition(lambda self: any(end is FinishReason.LENGTH for end in self.ended.values()))
    @rule(
        data=st.data(),
        result=st.lists(st.integers(0, 2), min_size=1, max_size=5),
        keeps=st.booleans(),
        tenant=st.sampled_from("abc"),
    )
    def follow_up(self, data, result, keeps, tenant):
        """A conversation goes on after an answer, at once or after its session has waited for a tool."""
        ended = sorted(key for key, end in self.ended.items() if end is FinishReason.LENGTH)
        request_id, choice = data.draw(st.sampled_from(ended))
        if keeps:
            self.engine.keep(request_id, choice)
        earlier = self.requests[request_id]
        prompt = (*earlier.prompt, *self.texts[request_id, choice], *result)
        if len(prompt) < 56:
            self._submit(prompt, 4, tenant=tenant, cache_salt=earlier.cache_salt)

    @rule()
    def crash(self):
        """Replace the engine; the next one resumes from the output delivered so far."""
        for request_id, choice in self.aborted - self.ended.keys():  # ends that may not have been delivered
            self._end(request_id, choice)
        self.start_engine()
        for request in self.requests.values():
            keys = [(request.id, choice) for choice in range(request.n)]
            if left := [key for key in keys if key not in self.ended]:
                self.engine.submit(replace(request, output_so_far={key[1]: tuple(self.texts[key]) for key in left}))

    def _end(self, request_id, choice):
        self.audits[request_id].add(StatusEvent(request_id, choice, Phase.ENDED, monotonic_time=self.now))
        self.ended[request_id, choice] = FinishReason.ABORT

    @rule(seconds=st.sampled_from([5.0, 50.0]))
    def wait(self, seconds):
        self.now += seconds

    def _step(self):
        self.now += 0.01
        for event in self.engine.step():
            if isinstance(event, StatusEvent):
                key = (event.request_id, event.choice)
                assert key not in self.ended, "nothing follows a terminal event"
                self.audits[event.request_id].add(event)
                self.last_phase[key] = event.phase
            if isinstance(event, (TokenEvent, EndEvent)):
                key = (event.request_id, event.choice)
                assert key not in self.ended, "nothing follows a terminal event"
                if isinstance(event, TokenEvent):
                    self.texts[key].append(event.token_id)
                if event.finish is not None:
                    assert self.last_phase[key] is Phase.ENDED, "the ENDED status comes before the terminal event"
                    self.ended[key] = event.finish
        assert self.runner.most_tokens <= self.engine.scheduler.config.max_num_batched_tokens

    @invariant()
    def books_balance(self):
        if hasattr(self, "engine"):
            check_integrity(self.engine.scheduler)
            paused = sum(
                s.state is State.PREEMPTED for choices in self.engine.scheduler.requests.values() for s in choices
            )
            assert sum(self.engine.scheduler.load().paused) == paused
            slots = [s for s in self.engine.scheduler.slots if s is not None]
            assert not any(s.request.is_paused for s in slots), "a paused request has no slot"
            pool = self.engine.scheduler.kv_manager.pool
            assert pool.free + pool.cached + pool.held == pool.total

    def teardown(self):
        if not hasattr(self, "engine"):
            return
        for request_id in list(self.engine.scheduler.requests):
            self._change(request_id, is_paused=False, service_class=self.requests[request_id].service_class)
        for _ in range(4000):  # every step computes at least one token; 4,000 is more than enough
            if not self.engine.has_work:
                break
            self._step()
        self._step()
        assert not self.engine.has_work, "no progress although arrivals stopped"
        assert self.ended.keys() == self.expected.keys()
        for audit in self.audits.values():
            for intervals in audit.choices:
                assert intervals[0].began == audit.arrived
                assert all(a.ended == b.began for a, b in pairwise(intervals)), intervals
                assert intervals[-1].ended is not None, intervals
                assert all(i.cause is not None for i in intervals if i.phase in (Phase.QUEUED, Phase.PAUSED)), (
                    "every wait has a reported cause"
                )
        for key, expected in self.expected.items():
            if key in self.aborted:
                assert expected[: len(self.texts[key])] == self.texts[key]
            else:
                assert self.texts[key] == expected, key
        check_integrity(self.engine.scheduler)
        assert self.engine.scheduler.kv_manager.pool.held == 0
        assert self.engine.scheduler.kv_manager.host.used == 0


TestSchedulerMachine = SchedulerMachine.TestCase
TestSchedulerMachine.settings = settings(
    max_examples=examples(150), stateful_step_count=40, suppress_health_check=list(HealthCheck)
)
