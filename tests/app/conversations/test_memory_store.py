"""MemoryStore: owners, bounds, and responses that outlive those they continue."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from itertools import count
from typing import Any

import pytest

from app.conversations.memory_store import MemoryStore
from app.conversations.saves import Saves
from app.conversations.shelf import MAX_EXPIRED, Limits, Shelf
from app.conversations.store import (
    ITEM_BYTES,
    CompletionWindow,
    StoredCompletion,
    StoredConversation,
    StoredItem,
    StoredResponse,
)
from tests.profiles import examples

IDS = count()


class Clock:
    """Clock that a test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def item(size: int = 2) -> StoredItem:
    return StoredItem(f"msg_{next(IDS)}", b"x" * size)


def response(
    name: str, tenant: str = "a", previous: str | None = None, items: int = 1, size: int = 2
) -> StoredResponse:
    stored = tuple(item(size) for _ in range(items))
    return StoredResponse(id=name, owner=tenant, tenant=tenant, created=0.0, previous_id=previous, input=stored)


def add(store: MemoryStore, name: str, **fields: Any) -> StoredResponse:
    """Add a response that has ended."""
    record = response(name, **fields)
    store.add_response(record, ())
    store.end_response(name, b'{"id":1}', (item(),))
    return record


def history(store: MemoryStore, name: str, owner: str = "a") -> list[str]:
    record = asyncio.run(store.response(name, owner))
    return [each.id for each in asyncio.run(store.history(record))]


def read(store: MemoryStore, name: str, owner: str = "a") -> StoredResponse | None:
    return asyncio.run(store.response(name, owner))


def kept(shelf: Shelf) -> list[Any]:
    return [entry.record for entry in shelf._entries.values()]


def check_integrity(store: MemoryStore) -> None:
    """Check that bytes, items and counts are those of the records, expired ones included."""
    records, ancestors = kept(store._responses), [ancestor.record for ancestor in store._ancestors.values()]
    assert store._responses._bytes == sum(record.size for record in [*records, *ancestors])
    own = [each for record in [*records, *kept(store._conversations)] for each in record.items]
    counts = {name: count for items in store._items._owners.values() for name, (_, count) in items.items()}
    assert counts == Counter(each.id for each in own)
    continued = [record.previous_id for record in [*records, *ancestors] if record.previous_id is not None]
    assert store._continued == Counter(continued)
    assert {record.id for record in ancestors} <= set(continued)


def test_the_items_of_a_chain_are_those_of_all_its_responses():
    """The oldest come first."""
    store = MemoryStore()
    ids = [
        each.id for name, previous in (("r1", None), ("r2", "r1")) for each in add(store, name, previous=previous).items
    ]
    found = history(store, "r2")
    assert found[0] == ids[0] and found[2] == ids[1] and len(found) == 4
    check_integrity(store)


def test_a_record_of_another_owner_is_absent():
    """It can be neither read nor deleted, and neither can its items."""
    store = MemoryStore()
    record = add(store, "r1")
    store.add_conversation(StoredConversation(id="c1", owner="a", tenant="a", created=0.0))
    store.add_completion(StoredCompletion(id="k1", owner="a", tenant="a", created=0.0, model="m", body=b"{}"))
    for read_one in (store.response, store.delete_response):
        assert not asyncio.run(read_one("r1", "b"))
    for read_one in (store.conversation, store.delete_conversation):
        assert not asyncio.run(read_one("c1", "b"))
    for read_one in (store.completion, store.delete_completion):
        assert not asyncio.run(read_one("k1", "b"))
    for owner, number in (("a", 1), ("b", 0)):
        assert len(asyncio.run(store.completions(owner, CompletionWindow(limit=9))).records) == number
    assert asyncio.run(store.item(record.input[0].id, "b")) is None
    assert asyncio.run(store.item(record.input[0].id, "a")) == record.input[0]


def test_a_response_keeps_the_items_of_deleted_ones():
    """They count until the last response that needs them is gone, and cannot be read or referred to."""
    store = MemoryStore()
    first = add(store, "r1", size=1000)
    add(store, "r2", previous="r1")
    whole = history(store, "r2")
    assert asyncio.run(store.delete_response("r1", "a"))
    assert read(store, "r1") is None and asyncio.run(store.item(first.input[0].id, "a")) is None
    assert history(store, "r2") == whole and store.usage()["responses"].bytes > 1000
    check_integrity(store)
    assert asyncio.run(store.delete_response("r2", "a"))
    assert store.usage()["responses"].bytes == 0 and not store._ancestors
    check_integrity(store)


def test_a_response_that_continues_one_that_is_gone_keeps_its_items():
    """The earlier one can be deleted while a prompt waits for its turn."""
    store = MemoryStore()
    inherited = [item(), item()]
    store.add_response(response("r2", previous="gone"), inherited)
    assert history(store, "r2")[:2] == [each.id for each in inherited]
    check_integrity(store)


def test_a_long_chain_is_released_without_recursion():
    """It is longer than Python's stack is deep."""
    store = MemoryStore(Limits(records=1))
    for at in range(5000):
        add(store, f"r{at}", previous=f"r{at - 1}" if at else None)
    assert len(store._ancestors) == 4999 and len(history(store, "r4999")) == 10_000
    assert asyncio.run(store.delete_response("r4999", "a"))
    assert store.usage()["responses"].bytes == 0 and not store._ancestors and not store._continued


def test_many_small_responses_stay_within_the_limit():
    """A tenant without a share of its own displaces only its own records."""
    store = MemoryStore(Limits(records=100))
    add(store, "mine")
    for at in range(5000):
        add(store, f"r{at}", tenant="flood")
    assert store.usage()["responses"].records == 100 and store.usage()["responses"].evicted == 4901
    assert read(store, "mine") is not None
    check_integrity(store)


def test_large_responses_stay_within_the_limit():
    """Bytes of ancestors count: a chain cannot hide them."""
    limit = 1 << 20
    store = MemoryStore(Limits(bytes=limit))
    add(store, "mine", size=10_000)
    for at in range(300):
        add(store, f"r{at}", tenant="flood", previous=f"r{at - 1}" if at else None, size=10_000)
        assert store.usage()["responses"].bytes <= limit
        check_integrity(store)
    assert read(store, "mine") is not None
    add(store, "huge", tenant="flood", size=limit)
    assert read(store, "huge", "flood") is None and store.usage()["responses"].bytes <= limit


def test_many_items_count_beside_their_text():
    """Empty items take memory too."""
    store = MemoryStore(Limits(bytes=100 * ITEM_BYTES))
    add(store, "r1", items=100, size=0)
    assert read(store, "r1") is None


def test_a_record_expires_after_its_last_change():
    """A conversation that is in use stays."""
    clock = Clock()
    store = MemoryStore(Limits(seconds=10.0), clock)
    add(store, "r1")
    store.add_conversation(StoredConversation(id="c1", owner="a", tenant="a", created=0.0))
    clock.now = 9.0
    store.extend_conversation("c1", [item()])
    assert read(store, "r1") is not None
    clock.now = 10.0
    assert read(store, "r1") is None and asyncio.run(store.conversation("c1", "a")) is not None
    clock.now = 19.0
    assert asyncio.run(store.conversation("c1", "a")) is None
    check_integrity(store)


def test_expired_records_are_removed_a_few_at_a_time():
    """Each may have thousands of items, and no call may hold the event loop for all of them."""
    clock = Clock()
    store = MemoryStore(Limits(seconds=10.0), clock)
    for at in range(50):
        add(store, f"r{at}")
    clock.now = 10.0
    assert read(store, "r49") is None and list(store._responses) == []
    assert 50 - 3 * MAX_EXPIRED - 1 <= store.usage()["responses"].records < 50


def test_a_write_to_a_dropped_record_does_nothing():
    """A response may be deleted while its answer is generated."""
    store = MemoryStore()
    store.end_response("gone", b"{}", (item(),))
    store.extend_conversation("gone", [item()])
    store.remove_conversation_item("gone", "x")
    store.update_conversation("gone", b"{}")
    store.end_completion("gone", b"{}")
    store.update_completion("gone", {})
    assert [usage.records for usage in store.usage().values()] == [0, 0, 0]


def test_an_item_is_in_a_conversation_once():
    """A response of the conversation may refer to its items."""
    store = MemoryStore()
    known = item()
    store.add_conversation(StoredConversation(id="c1", owner="a", tenant="a", created=0.0, items=(known,)))
    added = item()
    store.extend_conversation("c1", [known, added])
    assert asyncio.run(store.conversation("c1", "a")).items == (known, added)
    store.remove_conversation_item("c1", known.id)
    assert asyncio.run(store.item(known.id, "a")) is None
    check_integrity(store)


@pytest.mark.parametrize("seed", range(examples(12)))
def test_counts_are_those_of_the_records_after_any_operations(seed: int):
    """Chains of several tenants are added, deleted, evicted and expire in random order."""
    chance = random.Random(seed)
    clock = Clock()
    store = MemoryStore(Limits(records=20, bytes=60_000, seconds=30.0), clock)
    names: list[str] = []
    for at in range(400):
        clock.now += chance.random()
        action = chance.random()
        if action < 0.6 or not names:
            tenant, previous = chance.choice("abc"), chance.choice([None, *names[-10:]])
            add(
                store,
                f"r{at}",
                tenant=tenant,
                previous=previous,
                items=chance.randrange(1, 4),
                size=chance.choice((1, 3000)),
            )
            names.append(f"r{at}")
        elif action < 0.9:
            name = chance.choice(names)
            asyncio.run(store.delete_response(name, chance.choice("abc")))
        else:
            clock.now += 20 * chance.random()
        check_integrity(store)
        for record in list(store._responses):
            asyncio.run(store.history(record))
    clock.now += 30.0
    assert list(store._responses) == []
    while store.usage()["responses"].records:
        check_integrity(store)
    assert store.usage()["responses"].bytes == 0 and not store._ancestors and not store._items._owners


async def test_a_read_waits_for_the_saves_of_its_record_only():
    """Long answers are encoded in a thread."""
    saves = Saves()
    saved: list[bytes] = []
    saves.start(["r1", "c1"], lambda: b"long", saved.append, in_thread=True)
    await saves.settled("r2")
    assert saved == []
    await saves.settled("c1")
    assert saved == [b"long"]
    saves.start(["r3"], lambda: b"short", saved.append, in_thread=False)
    assert saved == [b"long", b"short"] and not saves._tasks
