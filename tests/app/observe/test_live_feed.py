"""The engine page's event feed, which is encoded once for all watchers."""

from __future__ import annotations

import asyncio
import json
import time
from types import SimpleNamespace

from app.engine_client.member import EngineState
from app.observe import live_feed
from app.observe.live_feed import LiveFeed
from app.observe.rolling_latency import RollingLatency
from engine.load import Counters, EngineLoad, PageCounts, SlotView, Snapshot
from engine.types import ServiceClass
from tests.limits import HANG_SECONDS


class FakeClient:
    """An engine client whose snapshots are sent by the test."""

    def __init__(self, *phases: EngineState) -> None:
        """phases: of its engines, by default a ready one."""
        self.watchers: list = []
        self.snapshots = SimpleNamespace(watch=self.watchers.append, unwatch=self.watchers.remove)
        self.members = [SimpleNamespace(index=i, phase=phase) for i, phase in enumerate(phases or (EngineState.READY,))]


async def test_one_snapshot_is_encoded_once_for_all_watchers(monkeypatch):
    """All watchers get the same bytes, and the engine is watched once and only while there are watchers."""
    client, draining, views = FakeClient(), [False], []
    monkeypatch.setattr(live_feed, "_view", lambda *arguments: views.append(arguments) or {"step": len(views)})
    feed = LiveFeed(client, RollingLatency(time.monotonic), lambda: draining[0])
    watchers = [feed.watch(lambda: True) for _ in range(3)]
    events = [asyncio.ensure_future(anext(watcher)) for watcher in watchers]
    await asyncio.sleep(0)
    assert len(client.watchers) == 1
    client.watchers[0](0, None, None)
    first, *others = await asyncio.wait_for(asyncio.gather(*events), HANG_SECONDS)
    assert json.loads(first.removeprefix(b"data: "))["step"] == 1 and len(views) == 1
    assert all(other is first for other in others)
    for watcher in watchers:
        await watcher.aclose()
    assert not client.watchers


async def test_watchers_see_that_an_engine_is_lost_and_end_when_the_server_drains():
    """The change is an event of its own, and draining ends the stream."""
    client, draining = FakeClient(EngineState.RESTARTING), [False]
    feed = LiveFeed(client, RollingLatency(time.monotonic), lambda: draining[0])
    watcher = feed.watch(lambda: True)
    event = await asyncio.wait_for(anext(watcher), HANG_SECONDS)
    assert event == b'event: engine\ndata: {"engine":0,"engines":[0],"phase":"restarting"}\n\n'
    draining[0] = True
    assert [event async for event in watcher] == []


async def test_a_watcher_sees_the_newest_event_of_each_engine(monkeypatch):
    """Events of one engine do not hide those of another that arrive at the same time; older ones are missed."""
    client = FakeClient(EngineState.READY, EngineState.READY, EngineState.FAILED)
    monkeypatch.setattr(live_feed, "_view", lambda snapshot, *_: {"step": snapshot})
    feed = LiveFeed(client, RollingLatency(time.monotonic), lambda: False)
    watcher = feed.watch(lambda: True)
    seen = [await asyncio.wait_for(anext(watcher), HANG_SECONDS)]
    for engine, step in ((0, 1), (1, 7), (0, 2)):
        client.watchers[0](engine, step, None)
    seen += [await asyncio.wait_for(anext(watcher), HANG_SECONDS) for _ in range(2)]
    events = [json.loads(event.split(b"data: ")[1]) for event in seen]
    assert [(event["engine"], event.get("step"), event.get("phase")) for event in events] == [
        (2, None, "failed"),
        (0, 2, None),
        (1, 7, None),
    ]
    assert {tuple(event["engines"]) for event in events} == {(0, 1, 2)}
    await watcher.aclose()


async def test_watchers_are_woken_a_few_at_a_time():
    """The event loop runs other tasks between two groups, and every watcher gets the event."""
    client = FakeClient(EngineState.RESTARTING)
    feed = LiveFeed(client, RollingLatency(time.monotonic), lambda: False)
    watchers = [feed.watch(lambda: True) for _ in range(5 * live_feed.MAX_WOKEN_PER_TURN)]
    events = [asyncio.ensure_future(anext(watcher)) for watcher in watchers]
    largest = before = 0
    while before < len(events):
        await asyncio.sleep(0)
        done = sum(event.done() for event in events)
        largest, before = max(largest, done - before), done
    assert largest <= live_feed.MAX_WOKEN_PER_TURN
    for watcher in watchers:
        await watcher.aclose()


async def test_a_watcher_that_is_not_admitted_any_more_gets_no_further_event(monkeypatch):
    """Its feed ends at the next event, and others continue."""
    client, admitted = FakeClient(), [True]
    monkeypatch.setattr(live_feed, "_view", lambda *_: {})
    feed = LiveFeed(client, RollingLatency(time.monotonic), lambda: False)
    watchers = [feed.watch(lambda: admitted[0]), feed.watch(lambda: True)]
    for is_admitted in (True, False):
        admitted[0] = is_admitted
        events = [asyncio.ensure_future(anext(watcher, b"end")) for watcher in watchers]
        await asyncio.sleep(0)
        client.watchers[0](0, None, None)
        first, second = await asyncio.wait_for(asyncio.gather(*events), HANG_SECONDS)
        assert (first == b"end") is not is_admitted and second.startswith(b"data: ")
    await watchers[1].aclose()


async def test_watchers_that_leave_an_idle_server_are_forgotten():
    """This does not require an event."""
    feed = LiveFeed(FakeClient(), RollingLatency(time.monotonic), lambda: False)
    events = [asyncio.ensure_future(anext(feed.watch(lambda: True))) for _ in range(5)]
    await asyncio.sleep(0)
    for event in events[1:]:
        event.cancel()
    await asyncio.gather(*events[1:], return_exceptions=True)
    assert len(feed._waiting) == 1
    events[0].cancel()


async def test_the_feed_has_the_tokens_of_a_step_and_the_totals_of_drafts():
    """The page draws the former, and derives the gain from the latter."""
    client = FakeClient()
    watcher = LiveFeed(client, RollingLatency(time.monotonic), lambda: False).watch(lambda: True)
    event = asyncio.ensure_future(anext(watcher))
    await asyncio.sleep(0)
    slot = SlotView(
        slot=1,
        request_id="r",
        service_class=ServiceClass.BATCH,
        state="decode",
        context=9,
        generated=5,
        pages=1,
        step_tokens=4,
    )
    counters = Counters(drafts=5, drafted_tokens=20, accepted_by_position=(5, 4, 3))
    load = EngineLoad((0, 0, 1), (0, 0, 0), (0, 0, 0), PageCounts(8, 1, 0, 7, 0, 0), counters)
    client.watchers[0](0, Snapshot(slots=(slot,), waiting=(), total_slots=2, page_size=4), load)
    view = json.loads((await asyncio.wait_for(event, HANG_SECONDS)).removeprefix(b"data: "))
    assert view["slots"][0] is None and view["slots"][1]["step_tokens"] == 4
    assert view["drafts"] == {"steps": 5, "drafted": 20, "accepted": 12}
    await watcher.aclose()
