"""Tokens to text as they come, and stop strings across the pieces."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from app.detokenizer import Detokenizer, StopMatcher
from tests.app.text_models import MODEL, PIECES

ANY_IDS = st.lists(st.integers(0, MODEL.tokenizer.get_vocab_size() - 1), max_size=40)


@given(st.text(max_size=40))
def test_a_text_survives_being_cut_into_tokens(text: str):
    """Every character arrives, whole, in order."""
    detokenizer = Detokenizer(MODEL)
    pieces = [detokenizer.push(i) for i in MODEL.encode(text)] + [detokenizer.flush()]
    assert "".join(pieces) == text
    assert not any("\ufffd" in piece for piece in pieces if "\ufffd" not in text)


@given(ANY_IDS)
@settings(max_examples=300)
def test_streamed_text_is_the_text_of_all_tokens(ids: list[int]):
    """Even for bytes that make no characters, the pieces add up to the whole: nothing said is taken back."""
    detokenizer = Detokenizer(MODEL)
    streamed = "".join([*(detokenizer.push(i) for i in ids), detokenizer.flush()])
    assert streamed == MODEL.decode(ids)


def test_an_emoji_comes_out_at_once_and_only_when_complete():
    """Three quarters of a character are not shown."""
    ids = MODEL.encode("🎠")
    detokenizer = Detokenizer(MODEL)
    assert [detokenizer.push(i) for i in ids] == [""] * (len(ids) - 1) + ["🎠"]


def say(*parts: str) -> list[int]:
    """Tokens, and characters that have none: their bytes."""
    id_of = PIECES.tokenizer.token_to_id
    return [
        id_of(token)
        for part in parts
        for token in ([part] if id_of(part) is not None else [f"<0x{byte:02X}>" for byte in part.encode()])
    ]


@given(st.lists(st.sampled_from(["<s>", "▁the", "▁engine", "s", *"~é漢😀"]), max_size=24), st.data())
@settings(max_examples=300)
def test_a_text_that_goes_on_is_the_rest_of_the_whole(parts: list[str], data: st.DataObject):
    """With the space between, and where a character is cut between them."""
    ids = say(*parts)
    cut = data.draw(st.integers(0, len(ids)))
    begun, rest = Detokenizer(PIECES), Detokenizer(PIECES, ids[:cut])
    pieces = [*map(begun.push, ids[:cut]), *map(rest.push, ids[cut:]), rest.flush()]
    assert "".join(pieces) == PIECES.decode(ids)


def test_characters_that_are_bytes_come_whole_one_behind_the_other():
    """With what stands before and behind them."""
    detokenizer = Detokenizer(PIECES)
    pieces = [detokenizer.push(token_id) for token_id in say("▁the", *"😀😀é漢字", "▁engine")]
    assert list(filter(None, pieces)) == ["the", "😀", "😀", "é", "漢", "字", " engine"]


def test_a_text_goes_on_behind_characters_that_are_bytes():
    """However many of them: none is cut."""
    for faces in range(1, 20):
        detokenizer = Detokenizer(PIECES, say(*"😀" * faces))
        assert detokenizer.push(*say("▁engine")) + detokenizer.flush() == " engine"


def test_a_text_of_its_own_begins_without_a_space():
    """An answer of a chat does, and a prompt that is only a begin token."""
    ids = [PIECES.tokenizer.token_to_id(token) for token in ("<s>", "▁the", "▁engine", "s")]
    for before in ((), ids[:1]):
        detokenizer = Detokenizer(PIECES, before)
        assert "".join(map(detokenizer.push, ids[1:])) == "the engines"


@given(
    st.text(alphabet="ab", max_size=40),
    st.lists(st.text(alphabet="ab", min_size=1, max_size=5), min_size=1, max_size=4),
    st.lists(st.integers(0, 5), min_size=1, max_size=60),
)
@settings(max_examples=400)
def test_a_stop_string_is_found_however_the_text_is_cut(text: str, stops: list[str], sizes: list[int]):
    """The text shown ends before the first stop string, and no part of one is ever shown."""
    matcher, shown, met, at = StopMatcher(stops), "", None, 0
    for size in itertools.cycle([*sizes, 1]):
        if at >= len(text) or met is not None:
            break
        piece, met = matcher.push(text[at : at + size])
        shown, at = shown + piece, at + size
    if met is None:
        shown += matcher.flush()
    # The first moment at which any stop string is complete.
    ends = [(text.find(stop) + len(stop), stop) for stop in stops if stop in text]
    if met is None:
        assert not ends
        assert shown == text
    else:
        assert text.startswith(shown + met)
        assert met in stops
        assert not any(stop in shown for stop in stops)


def test_only_what_may_become_a_stop_string_is_held_back():
    """Text that cannot be part of a stop string is shown at once."""
    matcher = StopMatcher(["END"])
    assert matcher.push("abc") == ("abc", None)
    assert matcher.push("xE") == ("x", None)
    assert matcher.push("N") == ("", None)
    assert matcher.push("O") == ("ENO", None)
    assert matcher.push("E") == ("", None)
    assert matcher.flush() == "E"
