"""Limits of a tenant over several API processes, whose posts pass through boards of engines, late and repeatedly."""

from __future__ import annotations

import random
from collections import deque

import pytest

from app.admission.queues import Admission
from app.admission.rate_limits import RateLimits
from app.admission.request_counts import RequestCounts
from app.admission.shared_uses import LOST_SECONDS, UNREPORTED_SECONDS, SharedUses
from app.admission.tenants import Tenant, key_digest
from app.errors import ApiError
from engine.tenant_uses import IDLE_SECONDS, MAX_REPORTED_TENANTS, TenantUse, UseBoard, UseReport
from engine.types import Request, SamplingParams, ServiceClass
from tests.profiles import examples

STANDARD = ServiceClass.STANDARD


def tenant_with(**limits) -> Tenant:
    return Tenant(name="anna", digest=key_digest("a"), **limits)


class Process:
    """An API process without HTTP, with a queue of reports on their way from each engine."""

    def __init__(self, world: World, name: str) -> None:
        self.name = name
        self._world = world
        self.limits = RateLimits({}, lambda: world.now)
        self.queues = Admission(1000, 10**6, lambda: world.now)
        self.shared = SharedUses(self.limits, self.queues, lambda: world.now)
        self.counts = RequestCounts(self.queues, self.limits, self.shared)
        self.reports: dict[int, deque[UseReport]] = {}

    def refusal(self, tenant: Tenant, choices: int = 1) -> ApiError | None:
        """Return why a request is refused; None if it is admitted."""
        try:
            self.counts.check(tenant, STANDARD, 1, choices, 1, about_to_queue=0, slots=1, taken=1)
        except ApiError as error:
            return error
        return None

    def begin(self, tenant: Tenant, prompt: int = 1, choices: int = 1) -> Request:
        """Count a request that is admitted."""
        sampling = SamplingParams(max_tokens=1)
        request = Request(id="r", prompt=(1,) * prompt, sampling=sampling, n=choices, tenant=tenant.id)
        self.counts.enter(tenant, request)
        return request


class World:
    """Processes, boards of engines, and the channels between them, which are in order."""

    def __init__(self, processes: int, engines: int) -> None:
        self.now = 1000.0
        self.boards = {index: UseBoard(lambda: self.now) for index in range(engines)}
        self.processes: list[Process] = []
        for index in range(processes):
            self.add(f"p{index}")

    def add(self, name: str) -> Process:
        """Connect a new process to all engines."""
        self.processes.append(process := Process(self, name))
        for index in self.boards:
            self.join(process, index)
        return process

    def join(self, process: Process, index: int) -> None:
        """Connect a process to an engine."""
        process.reports[index] = deque()
        self.boards[index].join(process.name)
        process.shared.join(index)

    def post(self, process: Process) -> None:
        """Let a process post everything."""
        for index in process.reports.keys() & self.boards.keys():
            while (
                process.shared.has_unsent and index in process.shared._unsent and (uses := process.shared.take(index))
            ):
                self.boards[index].post(process.name, uses)

    def report(self, process: Process) -> None:
        """Let the engines write their reports for a process."""
        for index, board in self.boards.items():
            while report := board.take(process.name):
                process.reports[index].append(report)

    def read(self, process: Process, index: int) -> None:
        """Let a process read the reports of an engine."""
        reports = process.reports[index]
        while reports:
            process.shared.receive(index, reports.popleft())

    def settle(self) -> None:
        """Let all posts arrive."""
        for process in self.processes:
            self.post(process)
        for process in self.processes:
            self.report(process)
            for index in self.boards:
                self.read(process, index)

    def kill(self, index: int) -> None:
        """End an engine, with everything on its way from and to it."""
        del self.boards[index]
        for process in self.processes:
            del process.reports[index]
            process.shared.leave(index)

    def restart(self, index: int) -> None:
        """Start an engine in the place of one that has ended."""
        self.boards[index] = UseBoard(lambda: self.now)
        for process in self.processes:
            self.join(process, index)


class Bucket:
    """What a limit is to be: one bucket for all processes, and what was charged to it of late."""

    def __init__(self, per_minute: float) -> None:
        self.level = 0.0
        self.per_minute = per_minute
        self._at = 0.0
        self._charges: list[tuple[float, Process, float]] = []

    def charge(self, now: float, process: Process, amount: float) -> float:
        """Charge an amount. Returns the level."""
        self.level = max(0.0, self.level - (now - self._at) / 60 * self.per_minute) + amount
        self._at = now
        self._charges.append((now, process, amount))
        return self.level

    def unseen(self, process: Process, since: float) -> float:
        """Return what others have charged since a time."""
        return sum(amount for at, other, amount in self._charges if at >= since and other is not process)


TICK = 0.05
DELAY_TICKS = 4  # for which an engine holds back its reports, and for which they are on their way
DELAY = (2 * DELAY_TICKS + 2) * TICK


class Traffic:
    """Random requests of one tenant at all processes, with reports that are late or come twice."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.world = World(self.chance.randint(2, 4), self.chance.randint(1, 3))
        self.requests, self.tokens = (
            Bucket(self.chance.choice([6, 60, 6000])),
            Bucket(self.chance.choice([100, 1000, 10**6])),
        )
        self.tenant = tenant_with(
            max_concurrency=self.chance.randint(2, 6),
            requests_per_minute=int(self.requests.per_minute),
            tokens_per_minute=int(self.tokens.per_minute),
        )
        self.running: list[tuple[Process, Request]] = []
        self.choices = Bucket(0)  # those that were admitted, never replenished
        self._held: dict[tuple[str, int, str], int] = {}

    def tick(self) -> None:
        """Let some time pass, in which each process may get a request, and finish one."""
        world, chance = self.world, self.chance
        world.now += TICK
        for process in chance.sample(world.processes, len(world.processes)):
            if chance.random() < 0.5 and process.refusal(self.tenant) is None:
                self._admit(process)
            if self.running and chance.random() < 0.2:
                owner, request = self.running.pop(chance.randrange(len(self.running)))
                generated = chance.randint(0, 20)
                owner.counts.end(request, generated, has_started=True)
                self.tokens.charge(world.now, owner, generated)
            world.post(process)
        for process in world.processes:
            for index in list(world.boards):
                self._pass_on(process, index)

    def change_engines(self) -> None:
        """Kill or start an engine, seldom."""
        boards, chance = self.world.boards, self.chance
        if len(boards) > 1 and chance.random() < 0.02:
            self.world.kill(chance.choice(list(boards)))
        elif chance.random() < 0.05 and (missing := {0, 1, 2} - set(boards)):
            self.world.restart(min(missing))

    def _admit(self, process: Process) -> None:
        now, prompt = self.world.now, self.chance.randint(1, 20)
        request = process.begin(self.tenant, prompt)
        process.counts.start(request)
        self.running.append((process, request))
        since = now - DELAY
        assert len(self.running) <= (self.tenant.max_concurrency or 0) + self.choices.unseen(process, since)
        self.choices.charge(now, process, 1)
        for bucket, before, amount in ((self.requests, 1, 0), (self.tokens, 0, prompt)):
            level = bucket.charge(now, process, before)
            assert level <= bucket.per_minute + bucket.unseen(process, since) + 1e-6
            bucket.charge(now, process, amount)

    def _pass_on(self, process: Process, index: int) -> None:
        if self._is_due(process, index, "engine") and (report := self.world.boards[index].take(process.name)):
            process.reports[index].append(report)
        if self._is_due(process, index, "channel"):
            repeated = list(process.reports[index]) if self.chance.random() < 0.2 else []
            self.world.read(process, index)
            for report in repeated:
                process.shared.receive(index, report)

    def _is_due(self, process: Process, index: int, what: str) -> bool:
        key = process.name, index, what
        self._held[key] = self._held.get(key, 0) + 1
        if self._held[key] < DELAY_TICKS and self.chance.random() < 0.6:
            return False
        self._held[key] = 0
        return True


@pytest.mark.parametrize("seed", range(examples(240)))
def test_limits_are_exceeded_by_no_more_than_what_arrives_within_the_delay_of_a_report(seed: int):
    """With any interleaving, with late and repeated reports, and with engines that die as long as one is left."""
    traffic = Traffic(seed)
    for _ in range(traffic.chance.choice([60, 600])):
        traffic.tick()
        traffic.change_engines()
    traffic.world.settle()
    for process in traffic.world.processes:
        usage = process.limits.usage(traffic.tenant.id)
        assert usage is not None and usage.running + usage.elsewhere == len(traffic.running)


def test_choices_of_other_processes_count_until_they_end():
    """The refusal says so, and is counted."""
    world, tenant = World(2, 1), tenant_with(max_concurrency=2)
    first, second = world.processes
    requests = [first.begin(tenant), first.begin(tenant)]
    world.settle()
    refusal = second.refusal(tenant)
    assert refusal is not None and (refusal.status, refusal.code) == (429, "max_concurrency_exceeded")
    assert "(2 choices at once, over all API processes)" in str(refusal)
    assert second.limits.refused_shared == {"max_concurrency_exceeded": 1}
    own = first.refusal(tenant)
    assert own is not None and "API processes" not in str(own) and not first.limits.refused_shared
    first.counts.end(requests[0], 5, has_started=False)
    world.settle()
    assert second.refusal(tenant) is None


def test_requests_and_tokens_of_other_processes_are_charged_once():
    """Tokens of answers too; Retry-After is the time until the common bucket is replenished."""
    world, tenant = World(3, 2), tenant_with(requests_per_minute=6, tokens_per_minute=600)
    for process in world.processes * 2:
        assert process.refusal(tenant) is None
        process.counts.end(process.begin(tenant, 50), 20, has_started=False)
        world.settle()
    for process in world.processes:
        refusal = process.refusal(tenant)
        assert refusal is not None and "(6 requests a minute, over all API processes)" in str(refusal)
        assert refusal.headers == {"Retry-After": "10"}
        usage = process.limits.usage(tenant.id)
        assert usage is not None and (usage.requests, usage.tokens) == (6, 6 * 70)
    world.now += 10
    assert all(process.refusal(tenant) is None for process in world.processes)


def test_waiting_requests_of_other_processes_count_for_the_queue_of_a_key():
    """Retry-After follows the rate at which requests have left the queue in all of them."""
    world, tenant = World(2, 1), tenant_with(max_queue=8)
    first, second = world.processes
    requests = [first.begin(tenant) for _ in range(20)]
    world.settle()
    refusal = second.refusal(tenant)
    assert refusal is not None and refusal.code == "queue_quota_exceeded" and refusal.headers["Retry-After"] == "5"
    world.now += 1
    for request in requests[:12]:
        first.counts.start(request)
    world.settle()
    refusal = second.refusal(tenant)
    assert refusal is not None and "8 of 8 requests waiting in all API processes" in str(refusal)
    assert refusal.headers["Retry-After"] == "1", "12 have started within a second, so that two more start at once"
    assert second.queues.refused_shared == {"queue_quota_exceeded": 2}
    first.counts.start(requests[12])
    world.settle()
    assert second.refusal(tenant) is None


def test_prompt_tokens_that_wait_in_other_processes_count_for_the_queue_of_a_key():
    """A long prompt is still accepted if nothing waits anywhere."""
    world, tenant = World(2, 1), tenant_with(max_queue_tokens=10)
    first, second = world.processes
    assert second.refusal(tenant) is None
    request = first.begin(tenant, prompt=10)
    world.settle()
    refusal = second.refusal(tenant)
    assert refusal is not None and "10 of 10 prompt tokens waiting in all API processes" in str(refusal)
    first.counts.end(request, 0, has_started=False)
    world.settle()
    assert second.refusal(tenant) is None


def test_a_process_that_starts_takes_over_the_levels_of_the_others():
    """Replenished since their posts; requests in flight count too."""
    world, tenant = World(1, 2), tenant_with(requests_per_minute=6, max_concurrency=3)
    first = world.processes[0]
    for _ in range(6):
        first.counts.end(first.begin(tenant), 1, has_started=False)
    first.begin(tenant, choices=2)
    world.settle()
    world.now += 20
    late = world.add("late")
    world.settle()
    usage = late.limits.usage(tenant.id)
    assert usage is not None and (round(usage.requests, 6), usage.elsewhere) == (5, 2)
    assert late.refusal(tenant, choices=2) is not None and late.refusal(tenant) is None


def test_a_process_that_is_gone_has_no_requests_but_what_it_has_charged_stays():
    """If it only was disconnected, its requests count again, and nothing is charged twice."""
    world, tenant = World(2, 1), tenant_with(requests_per_minute=6, max_concurrency=2)
    first, second = world.processes
    first.begin(tenant, choices=2)
    world.settle()
    assert second.refusal(tenant) is not None and second.shared.num_processes == 1
    world.boards[0].leave(first.name)
    first.shared.leave(0)
    world.report(second)
    world.read(second, 0)
    usage = second.limits.usage(tenant.id)
    assert usage is not None and (usage.elsewhere, usage.requests) == (0, 1) and second.shared.num_processes == 0
    world.join(first, 0)
    world.settle()
    usage = second.limits.usage(tenant.id)
    assert usage is not None and (usage.elsewhere, usage.requests) == (2, 1)
    first.begin(tenant)
    world.settle()
    usage = second.limits.usage(tenant.id)
    assert usage is not None and (usage.elsewhere, usage.requests) == (3, 2)


def test_requests_of_other_processes_count_on_while_no_engine_is_connected():
    """They wait for the next engine as well. After a while they do not count, as their process may have ended."""
    world, tenant = World(2, 1), tenant_with(max_concurrency=2)
    first, second = world.processes
    first.begin(tenant, choices=2)
    world.settle()
    world.kill(0)
    assert second.refusal(tenant) is not None
    world.restart(0)
    world.settle()
    assert second.refusal(tenant) is not None
    world.kill(0)
    world.now += LOST_SECONDS
    second.shared.forget_lost()
    assert second.refusal(tenant) is None
    world.restart(0)
    world.settle()
    assert second.refusal(tenant) is not None


def test_the_requests_of_a_process_that_no_other_engine_reports_end_soon_after_its_engine():
    """The process would post to another engine within that time."""
    world, tenant = World(2, 2), tenant_with(max_concurrency=2)
    first, second = world.processes
    world.boards[1].leave(first.name)
    first.shared.leave(1)
    first.begin(tenant, choices=2)
    world.settle()
    assert second.refusal(tenant) is not None
    world.kill(0)
    assert second.refusal(tenant) is not None
    world.now += UNREPORTED_SECONDS
    second.shared.forget_lost()
    assert second.refusal(tenant) is None


def test_nothing_is_posted_without_limits_or_without_other_connections():
    """The sums are not even kept."""
    world = World(2, 1)
    first, second = world.processes
    first.begin(tenant_with())
    assert not first.shared.has_unsent
    second.shared.leave(0)
    second.begin(tenant_with(max_concurrency=1))
    assert not second.shared.has_unsent and not second.shared._sums


def test_a_tenant_that_returns_after_others_have_forgotten_it_is_charged_once():
    """Its sums begin anew by then. Idle tenants are forgotten when others post."""
    world, tenant = World(2, 1), tenant_with(requests_per_minute=60)
    first, second = world.processes
    for round_number in range(3):
        for _ in range(5):
            first.counts.end(first.begin(tenant), 1, has_started=False)
        world.settle()
        usage = second.limits.usage(tenant.id)
        assert usage is not None and usage.requests == 5
        world.now += IDLE_SECONDS
        other = Tenant(name="bert", digest=key_digest(f"b{round_number}"), requests_per_minute=60)
        first.counts.end(first.begin(other), 1, has_started=False)
        world.settle()
        assert second.shared.num_tenants == len(world.boards[0]._uses[first.name]) == 1


def test_a_late_or_repeated_post_changes_nothing():
    """Whichever engine it comes from."""
    world, tenant = World(2, 2), tenant_with(requests_per_minute=60)
    first, second = world.processes
    first.begin(tenant)
    world.post(first)
    late = world.boards[1].take(second.name)
    first.begin(tenant)
    world.settle()
    assert late is not None
    for report in (late, late):
        second.shared.receive(1, report)
        usage = second.limits.usage(tenant.id)
        assert usage is not None and (usage.requests, usage.elsewhere) == (2, 2)
        assert second.queues.waiting_of(tenant.id).all_requests == 2


def test_a_post_that_is_reported_again_counts_after_its_process_was_forgotten():
    """As when the only connection to engines was lost for long, and the other process has not changed."""
    world, tenant = World(2, 1), tenant_with(max_concurrency=2)
    first, second = world.processes
    first.begin(tenant, choices=2)
    world.settle()
    world.boards[0].leave(second.name)
    second.shared.leave(0)
    world.now += LOST_SECONDS
    second.shared.forget_lost()
    assert second.refusal(tenant) is None
    world.join(second, 0)
    world.settle()
    assert second.refusal(tenant) is not None


def test_a_flood_of_tenants_delays_posts_and_takes_bounded_memory(monkeypatch: pytest.MonkeyPatch):
    """Each report has 64 tenants at most, in the order of their changes; beyond a bound the oldest are forgotten."""
    for module in ("app.admission.shared_uses", "engine.tenant_uses"):
        monkeypatch.setattr(f"{module}.MAX_PROCESS_TENANTS", 500)
    monkeypatch.setattr("app.admission.shared_uses.MAX_IDLE_TENANTS", 500)
    world = World(2, 1)
    first, second = world.processes
    for number in range(1000):
        first.begin(Tenant(name="t", digest=key_digest(f"k{number}"), max_concurrency=1))
    world.post(first)
    board, sizes = world.boards[0], []
    while report := board.take(second.name):
        sizes.append(len(report.uses))
        second.shared.receive(0, report)
    assert max(sizes) == MAX_REPORTED_TENANTS and sum(sizes) == second.shared.num_tenants == 500
    assert second.limits.usage(key_digest("k999")[:16]).elsewhere == 1  # type: ignore[union-attr]
    assert len(board._uses[first.name]) == len(first.shared._sums) == 500


def test_a_process_that_reads_nothing_is_sent_the_newest_use_only(monkeypatch: pytest.MonkeyPatch):
    """However often it changes meanwhile, and of a bounded number of tenants."""
    monkeypatch.setattr("engine.tenant_uses.MAX_UNSENT_TENANTS", 2)
    board = UseBoard(lambda: 0.0)
    for name in ("a", "b"):
        board.join(name)
    for number in range(1, 1000):
        board.post("a", [TenantUse("t", 0, number, requests=number)])
    report = board.take("b")
    assert report is not None and [each.use.requests for each in report.uses] == [999]
    assert board.take("b") is None and board.take("a") is None
    for number, tenant in enumerate("tuvw", 1000):
        board.post("a", [TenantUse(tenant, 0, number)])
    report = board.take("b")
    assert report is not None and [each.use.tenant for each in report.uses] == ["v", "w"]
    board.post("a", [TenantUse("t", 0, 2000)])
    board.leave("a")
    assert board.take("b") == UseReport((), ("a",))
