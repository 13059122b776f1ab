"""JSON from clients is decoded strictly, and bodies that would take long to decode are refused before."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.errors import ApiError
from app.http import json_body
from app.http.json_body import check_structure, decode_json

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=5), inner, max_size=5),
    max_leaves=30,
)


@given(VALUES, st.booleans())
def test_any_json_value_survives_a_round_trip(value, ensure_ascii: bool):
    """Strings are escaped or in UTF-8."""
    assert decode_json(json.dumps(value, ensure_ascii=ensure_ascii).encode()) == value


@pytest.mark.parametrize("body", [b'\xef\xbb\xbf{"a": 1}', '\ufeff{"a": 1}'])
def test_a_byte_order_mark_at_the_start_is_skipped(body: bytes | str):
    """Files and frames of some clients begin with one."""
    assert decode_json(body) == {"a": 1}


@pytest.mark.parametrize(
    ("body", "part"),
    [
        (b'{"n": 1, "n": 2}', "the key 'n' occurs twice"),
        (b'{"a": [{"b": 1, "b": 1}]}', "the key 'b' occurs twice"),
        (b'{"temperature": NaN}', "NaN is not a JSON number"),
        (b'{"temperature": -Infinity}', "-Infinity is not a JSON number"),
        (b'{"stop": "\\ud800"}', "a lone surrogate"),
        (b'{"\\uDFFF": 1}', "a lone surrogate"),
        (b'{"a": "\xff"}', "byte 7 is not UTF-8"),
        (b'{"n": %s}' % (b"1" * 5000), "4300"),
        (b'{"n": ', "line 1, column 7"),
        (b"", "line 1, column 1"),
        (b"\xef\xbb\xbf\xef\xbb\xbf{}", "line 1, column 1"),
        ('{"n": 1}'.encode("utf-16"), "not UTF-8"),
    ],
)
def test_invalid_or_ambiguous_json_is_refused_with_the_reason(body: bytes, part: str):
    """The status is 400, with a code of its own."""
    with pytest.raises(ApiError) as refused:
        decode_json(body)
    assert (refused.value.status, refused.value.code) == (400, "invalid_json")
    assert part in str(refused.value)


def nested(levels: int) -> bytes:
    """Return objects and arrays in each other, beside other values; an even number of levels."""
    return b'{"a": "[[{{", "b": [0, ' * (levels // 2) + b"0" + b"]}" * (levels // 2)


@pytest.mark.parametrize("body", [nested(json_body.MAX_DEPTH + 2), b"[" * 250_000, b'{"a":' * 250_000])
def test_deeply_nested_json_is_refused(body: bytes):
    """Values are encoded again for clients and processes, where deep ones would fail."""
    with pytest.raises(ApiError, match="more than 100 levels") as refused:
        decode_json(body)
    assert (refused.value.status, refused.value.code) == (400, "body_too_complex")


def test_nested_json_is_accepted_up_to_the_limit():
    """Brackets in strings do not count, nor do many values beside each other."""
    for body in (nested(json_body.MAX_DEPTH), b"[%s1]" % (b"[], " * 200), json.dumps("[" * 200).encode()):
        decode_json(body)


def test_a_surrogate_pair_is_a_character():
    """Clients without UTF-8 send emoji in this way."""
    assert decode_json(b'"\\ud83d\\ude00"') == "\U0001f600"


def counts(value) -> tuple[int, int, int]:
    """Return the numbers of containers, keys and separators that `check_structure` counts."""
    if isinstance(value, dict):
        inner = [counts(item) for item in value.values()]
        own = (1, len(value), max(0, len(value) - 1))
    elif isinstance(value, list):
        inner = [counts(item) for item in value]
        own = (1, 0, max(0, len(value) - 1))
    else:
        return (0, 0, 0)
    return tuple(map(sum, zip(own, *inner, strict=True)))  # type: ignore[return-value]


@given(st.dictionaries(st.text(alphabet='a"\\{[:,]}é', max_size=6), VALUES, max_size=6), st.integers(1, 40))
def test_structure_is_counted_outside_of_strings_across_slices(value, slice_bytes: int):
    """Each limit holds exactly, for any contents of strings."""
    body = json.dumps(value).encode()
    containers, keys, separators = counts(value)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_body, "_SLICE_BYTES", slice_bytes)
        patch.setattr(json_body, "MAX_VALUES", separators + len(body))  # one for each slice at most
        patch.setattr(json_body, "MAX_CONTAINERS", containers)
        patch.setattr(json_body, "MAX_KEYS", keys)
        check_structure(body)
        for name, number in (("MAX_CONTAINERS", containers), ("MAX_KEYS", keys)):
            if number > 1:
                with pytest.MonkeyPatch.context() as tighter:
                    tighter.setattr(json_body, name, number - 1)
                    tighter.setattr(json_body, "MAX_UNCHECKED", 0)
                    with pytest.raises(ApiError):
                        check_structure(body)


@pytest.mark.parametrize(
    "body",
    [
        b"[" + b"[]," * 11_000 + b"[]]",
        json.dumps({f"k{i}": 0 for i in range(31_000)}).encode(),
        b"[%s0]" % (b"0," * 151_000),
    ],
)
def test_a_body_with_more_json_than_any_request_needs_is_refused(body: bytes):
    """The number of its containers, keys or values exceeds the limit."""
    with pytest.raises(ApiError) as refused:
        check_structure(body)
    assert refused.value.code == "body_too_complex"
