"""Incremental detokenization, and stop strings across chunks."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from app.text.detokenizer import Detokenizer, StopMatcher
from tests.app.text_models import MODEL, PIECES
from tests.profiles import examples

ANY_IDS = st.lists(st.integers(0, MODEL.tokenizer.get_vocab_size() - 1), max_size=40)


@given(st.text(max_size=40))
def test_a_text_survives_being_cut_into_tokens(text: str):
    """Every character arrives complete and in order."""
    detokenizer = Detokenizer(MODEL)
    pieces = [detokenizer.push(i) for i in MODEL.encode(text)] + [detokenizer.flush()]
    assert "".join(pieces) == text
    assert not any("\ufffd" in piece for piece in pieces if "\ufffd" not in text)


@given(ANY_IDS)
@settings(max_examples=examples(300))
def test_streamed_text_is_the_text_of_all_tokens(ids: list[int]):
    """The chunks add up to the whole even for bytes that form no characters, and no emitted text is taken back."""
    detokenizer = Detokenizer(MODEL)
    streamed = "".join([*(detokenizer.push(i) for i in ids), detokenizer.flush()])
    assert streamed == MODEL.decode(ids)


def test_an_emoji_is_emitted_as_soon_as_it_is_complete():
    """An incomplete character is not emitted."""
    ids = MODEL.encode("🎠")
    detokenizer = Detokenizer(MODEL)
    assert [detokenizer.push(i) for i in ids] == [""] * (len(ids) - 1) + ["🎠"]


def ids_of(*parts: str) -> list[int]:
    """Return ids of the given tokens; characters without a token become byte tokens."""
    id_of = PIECES.tokenizer.token_to_id
    return [
        id_of(token)
        for part in parts
        for token in ([part] if id_of(part) is not None else [f"<0x{byte:02X}>" for byte in part.encode()])
    ]


@given(st.lists(st.sampled_from(["<s>", "▁the", "▁engine", "s", *"~é漢😀"]), max_size=24), st.data())
@settings(max_examples=examples(300))
def test_a_continued_text_is_the_rest_of_the_whole(parts: list[str], data: st.DataObject):
    """This includes the space between both parts, and characters that are cut between them."""
    ids = ids_of(*parts)
    cut = data.draw(st.integers(0, len(ids)))
    first, rest = Detokenizer(PIECES), Detokenizer(PIECES, ids[:cut])
    pieces = [*map(first.push, ids[:cut]), *map(rest.push, ids[cut:]), rest.flush()]
    assert "".join(pieces) == PIECES.decode(ids)


def test_characters_of_byte_tokens_are_emitted_one_by_one():
    """This includes the text before and after them."""
    detokenizer = Detokenizer(PIECES)
    pieces = [detokenizer.push(token_id) for token_id in ids_of("▁the", *"😀😀é漢字", "▁engine")]
    assert list(filter(None, pieces)) == ["the", "😀", "😀", "é", "漢", "字", " engine"]


def test_a_text_continues_after_characters_of_byte_tokens():
    """No character is cut, for any number of them."""
    for count in range(1, 20):
        detokenizer = Detokenizer(PIECES, ids_of(*"😀" * count))
        assert detokenizer.push(*ids_of("▁engine")) + detokenizer.flush() == " engine"


def test_an_independent_text_begins_without_a_space():
    """Examples are the answer of a chat, and a prompt that consists of a begin token."""
    ids = [PIECES.tokenizer.token_to_id(token) for token in ("<s>", "▁the", "▁engine", "s")]
    for before in ((), ids[:1]):
        detokenizer = Detokenizer(PIECES, before)
        assert "".join(map(detokenizer.push, ids[1:])) == "the engines"


@given(
    st.text(alphabet="ab", max_size=40),
    st.lists(st.text(alphabet="ab", min_size=1, max_size=5), min_size=1, max_size=4),
    st.lists(st.integers(0, 5), min_size=1, max_size=60),
)
@settings(max_examples=examples(400))
def test_a_stop_string_is_found_in_any_chunks(text: str, stops: list[str], sizes: list[int]):
    """The emitted text ends before the first stop string and contains no part of one."""
    matcher, shown, met, at = StopMatcher(stops), "", None, 0
    for size in itertools.cycle([*sizes, 1]):
        if at >= len(text) or met is not None:
            break
        piece, met = matcher.push(text[at : at + size])
        shown, at = shown + piece, at + size
    if met is None:
        shown += matcher.flush()
    # first position at which any stop string is complete
    ends = [(text.find(stop) + len(stop), stop) for stop in stops if stop in text]
    if met is None:
        assert not ends
        assert shown == text
    else:
        assert text.startswith(shown + met)
        assert met in stops
        assert not any(stop in shown for stop in stops)


def test_only_text_that_may_become_a_stop_string_is_held_back():
    """Text that cannot be part of a stop string is emitted at once."""
    matcher = StopMatcher(["END"])
    assert matcher.push("abc") == ("abc", None)
    assert matcher.push("xE") == ("x", None)
    assert matcher.push("N") == ("", None)
    assert matcher.push("O") == ("ENO", None)
    assert matcher.push("E") == ("", None)
    assert matcher.flush() == "E"
