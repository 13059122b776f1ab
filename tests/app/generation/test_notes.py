"""Notes of requests: what they hold, and their largest size."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.generation.notes import MAX_NOTE_BYTES, alias_of, noted
from app.store.entries import Entry, Note, Origin
from engine.types import Request, SamplingParams, ServiceClass

REQUEST = Request(id="r", prompt=(1, 2), sampling=SamplingParams(max_tokens=3), tenant="anna", deadline=5.0)


def note_of(body: bytes, key: str = "") -> Note:
    origin = Origin("ChatRequest", body, 60.0, key, b"d")
    return Note(origin, "anna", "k", "", 7.0, 9.0, "f", "v", "e", ServiceClass.STANDARD)


@given(st.binary(max_size=200), st.text(max_size=20))
def test_the_note_of_a_request_gives_its_entry_in_the_journal(body: bytes, key: str):
    """Whichever way another process gets it, there is one description of a stream."""
    note = note_of(body, key)
    queued = noted(REQUEST, note, lambda request: pytest.fail("it is not large"))
    assert Entry.of(queued, msgspec.msgpack.decode(queued.note, type=Note)) == Entry.of(REQUEST, note)
    assert queued.alias == (alias_of("anna", key) if key else "")


def test_a_large_note_is_left_out_and_counted():
    """The request is served all the same."""
    counted: list[Request] = []
    assert noted(REQUEST, note_of(bytes(MAX_NOTE_BYTES), "key"), counted.append) == REQUEST
    assert counted == [REQUEST]
    assert noted(REQUEST, note_of(bytes(MAX_NOTE_BYTES - 200)), counted.append).note and len(counted) == 1


def test_the_alias_of_a_key_depends_on_its_tenant():
    assert len({alias_of("anna", "key"), alias_of("bert", "key"), alias_of("anna", "other")}) == 3
