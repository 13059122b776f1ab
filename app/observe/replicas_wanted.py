"""Number of engines that the service needs, for autoscalers: a rule, its memory, and the metrics that show it.

Engines report the choices of all API processes, and each API process knows the waits of its own requests. An autoscaler
takes the largest number of all API processes.

People are requests of the classes interactive and standard. Batch requests fill the slots that people leave, so they
need more engines only once the oldest of them has waited for too long. The use of a device is no measure: batch work
uses all of it. Requests in flight are none either: most of them may be batch work, and the length of a queue says
nothing about waits.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from app.engine_client.client import EngineClient
from app.observe.engine_collector import ENGINE_LABELS
from engine.types import Request, ServiceClass

MAX_DEMAND_SHARE = 0.7  # of the slots: demand of people beyond which another engine is wanted
MAX_WAIT_SECONDS = 1.0  # of a person, beyond which another engine is wanted
MAX_BATCH_WAIT_SECONDS = 600.0  # of a batch request
# A batch request with a deadline may wait for this share of its time, and for a minute in any case, so that a client
# that sets deadlines which cannot be met starts no engines.
MAX_DEADLINE_SHARE = 0.5
MIN_BATCH_WAIT_SECONDS = 60.0
RECENT_SECONDS = 30.0  # for which a wait counts
DOWN_SECONDS = 300.0  # for which a smaller number must have been wanted before it is reported
SAMPLE_SECONDS = 0.5  # between samples; a wait that ends within this time after it became too long may be missed


@dataclass(frozen=True, slots=True)
class ServiceDemand:
    """Use of the ready engines at one moment.

    demand: choices of people that run or wait. slots: of all ready engines. longest_waits: seconds for which the oldest
    request of each class has waited for a slot. has_waited_long: a request has waited for longer than it may.
    """

    engines: int
    slots: int
    demand: int
    longest_waits: tuple[float, float, float] = (0.0, 0.0, 0.0)
    has_waited_long: bool = False


def engines_for(demand: int, slots_per_engine: float) -> int:
    """Return the engines of which a number of choices of people takes at most `MAX_DEMAND_SHARE` of the slots."""
    # Rounded, because 0.7 * 10 is less than 7 in floating point.
    return max(1, math.ceil(round(demand / (MAX_DEMAND_SHARE * slots_per_engine), 9)))


def max_wait_seconds(request: Request, waiting_since: float) -> float:
    """Return the seconds for which a request may wait before another engine is wanted."""
    if request.service_class is not ServiceClass.BATCH:
        return MAX_WAIT_SECONDS
    if request.deadline is None:
        return MAX_BATCH_WAIT_SECONDS
    share = MAX_DEADLINE_SHARE * (request.deadline - waiting_since)
    return min(max(share, MIN_BATCH_WAIT_SECONDS), MAX_BATCH_WAIT_SECONDS)


def measure_waits(waits: Iterable[tuple[Request, float]], now: float) -> tuple[tuple[float, float, float], bool]:
    """Return the longest wait of each class in seconds, and whether any request has waited for longer than it may.

    waits: waiting requests, each with the moment since which it waits, on the same clock as `now`.
    """
    longest = [0.0, 0.0, 0.0]
    has_waited_long = False
    for request, since in waits:
        seconds = now - since
        longest[request.service_class] = max(longest[request.service_class], seconds)
        has_waited_long = has_waited_long or seconds > max_wait_seconds(request, since)
    return (longest[0], longest[1], longest[2]), has_waited_long


def measure_demand(client: EngineClient, now: float) -> ServiceDemand:
    """Return the current demand. now: on the monotonic clock."""
    engines = slots = 0
    people = (ServiceClass.INTERACTIVE, ServiceClass.STANDARD)
    demand = sum(client.num_waiting(service_class) for service_class in people)
    for member in client.members:
        if not member.is_ready or member.info is None:
            continue
        engines += 1
        slots += member.info.max_num_seqs
        if (load := member.load) is not None:
            demand += sum(load.running[each] + load.waiting[each] + load.paused[each] for each in people)
    return ServiceDemand(engines, slots, demand, *measure_waits(client.slot_waits(), now))


class ReplicasWanted:
    """Memory of the rule: a larger number is wanted at once, a smaller one after `DOWN_SECONDS`."""

    def __init__(self) -> None:
        self._recent: deque[tuple[float, ServiceDemand]] = deque()  # samples of the last `RECENT_SECONDS`
        # Moments and the numbers that were wanted then, of the last `DOWN_SECONDS`, without those that were followed
        # by a larger or equal one: descending, so that the first is the largest.
        self._peaks: deque[tuple[float, int]] = deque()

    def observe(self, sample: ServiceDemand, now: float) -> None:
        """Add a sample. Without a ready engine nothing is learnt: the number stays, so that engines that fail to start
        are not taken away.
        """
        self._recent.append((now, sample))
        while self._recent[0][0] <= now - RECENT_SECONDS:
            self._recent.popleft()
        if not sample.engines:
            return
        number = engines_for(sample.demand, sample.slots / sample.engines)
        # One more than there were when the request waited: not one more for each engine that is added meanwhile.
        number = max([number, *(each.engines + 1 for _, each in self._recent if each.has_waited_long)])
        while self._peaks and self._peaks[-1][1] <= number:
            self._peaks.pop()
        self._peaks.append((now, number))
        while self._peaks[0][0] <= now - DOWN_SECONDS:
            self._peaks.popleft()

    @property
    def number(self) -> int | None:
        """Return the wanted number of engines; None before the first one was ready."""
        return self._peaks[0][1] if self._peaks else None

    @property
    def longest_waits(self) -> tuple[float, float, float]:
        """Return the longest wait of each class in the recent samples, in seconds."""
        longest = [max((sample.longest_waits[each] for _, sample in self._recent), default=0.0) for each in range(3)]
        return longest[0], longest[1], longest[2]


class ReplicasWantedCollector(Collector):
    """Samples the demand on a timer, and reports the wanted number of engines and what it is made of."""

    def __init__(
        self,
        client: EngineClient,
        registry: CollectorRegistry,
        model: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._model = model
        self._clock = clock
        self._wanted = ReplicasWanted()
        self._timer: asyncio.TimerHandle | None = None
        registry.register(self)

    def start(self) -> None:
        """Begin to sample on the running event loop."""
        self.sample()
        self._timer = asyncio.get_running_loop().call_later(SAMPLE_SECONDS, self.start)

    def stop(self) -> None:
        """Stop sampling."""
        if self._timer is not None:
            self._timer.cancel()

    def sample(self) -> ServiceDemand:
        """Add the current demand to the memory, and return it."""
        now = self._clock()
        demand = measure_demand(self._client, now)
        self._wanted.observe(demand, now)
        return demand

    def collect(self) -> Iterator[Metric]:
        demand = self.sample()
        if self._wanted.number is not None:
            text = "Engines that the service needs, for autoscalers; the largest number of all API processes counts."
            yield self._gauge("carousel:replicas_wanted", text, self._wanted.number)
        text = "Interactive and standard choices that run or wait in the engines, those of all API processes."
        yield self._gauge("carousel:people_demand", text, demand.demand)
        yield self._gauge("carousel:ready_slots", "Batch slots of the engines that serve requests.", demand.slots)
        waits = GaugeMetricFamily(
            "carousel:longest_wait_seconds",
            f"Longest wait for a slot in the last {RECENT_SECONDS:g} s, of requests of this API process.",
            labels=ENGINE_LABELS,
        )
        for service_class, seconds in zip(ServiceClass, self._wanted.longest_waits, strict=True):
            waits.add_metric([self._model, service_class.label], seconds)
        yield waits

    def _gauge(self, name: str, text: str, value: float) -> GaugeMetricFamily:
        gauge = GaugeMetricFamily(name, text, labels=("model_name",))
        gauge.add_metric([self._model], value)
        return gauge
