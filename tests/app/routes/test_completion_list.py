"""Lists of stored chat completions whose entries are in several API processes."""

from __future__ import annotations

import random
from functools import partial

import pytest

from app.conversations import store as store_module
from app.conversations.memory_store import MemoryStore
from app.conversations.shelf import Limits
from app.conversations.store import CompletionWindow, StoredCompletion
from app.errors import ApiError
from app.routes.completion_list import list_part, merge_lists
from tests.profiles import examples

OWNER = "a"


def completion(chance: random.Random, number: int) -> StoredCompletion:
    """Return a completion; several have the same time."""
    return StoredCompletion(
        id=f"k{chance.randrange(10**6)}-{number}",
        owner=chance.choice([OWNER, OWNER, OWNER, "b"]),
        tenant="t",
        created=float(chance.randrange(12)) / 3,
        model=chance.choice("mn"),
        metadata={"x": chance.choice("12")},
        body=b"" if chance.random() < 0.1 else b"{%s}" % (b"1" * chance.randrange(40)),
    )


@pytest.mark.parametrize("seed", range(examples(60)))
async def test_merged_pages_are_those_of_one_process(monkeypatch, seed: int):
    """Of a process that has all entries, whichever process is asked, and also if bytes bound the pages."""
    chance = random.Random(seed)
    monkeypatch.setattr(store_module, "MAX_PAGE_BYTES", chance.choice([30, 100, 10**6]))
    ample = Limits(records=1000)
    whole, parts = MemoryStore(ample), [MemoryStore(ample) for _ in range(chance.randrange(1, 5))]
    for number in range(chance.randrange(40)):
        record = completion(chance, number)
        for store in (whole, chance.choice(parts)):
            store.add_completion(record)
    window = CompletionWindow(
        limit=chance.choice([1, 2, 3, 7, 100]),
        is_ascending=chance.random() < 0.5,
        model=chance.choice([None, None, "m"]),
        metadata=chance.choice([{}, {"x": "1"}]),
    )
    asks = [partial(list_part, store, OWNER) for store in parts]
    after, seen = None, 0
    while True:
        page = await merge_lists(chance.sample(asks, len(asks)), window, after)
        alone = await merge_lists([partial(list_part, whole, OWNER)], window, after)
        assert (list(page.records), page.has_more) == (list(alone.records), alone.has_more)
        seen += len(page.records)
        if not page.has_more:
            break
        after = page.records[-1].id
    listed = await whole.completions(OWNER, CompletionWindow(limit=1000, model=window.model, metadata=window.metadata))
    assert listed.has_more or seen == len(listed.records)
    with pytest.raises(ApiError) as refused:
        await merge_lists(asks, window, "unknown")
    assert (refused.value.status, refused.value.param) == (400, "after")
