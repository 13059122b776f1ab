"""JSON from clients: strict decoding, and limits on its structure before objects are created from it."""

from __future__ import annotations

import json
from typing import Any, NoReturn

from app.errors import ApiError

# Largest text for json.loads on the event loop: the slowest one of that size takes about 5 ms to decode and validate.
MAX_INLINE_BYTES = 32 << 10
# A decoder runs without releasing the interpreter lock. At these limits it does so for less than 10 ms.
MAX_CONTAINERS = 10_000  # objects and arrays
MAX_KEYS = 30_000
MAX_VALUES = 150_000
MAX_DEPTH = 100  # of nested objects and arrays; values are encoded again, which recurses on a deeper stack
MAX_UNCHECKED = 10_000  # of all three, counted inside strings too, below which no closer check is needed
_SLICE_BYTES = 256 << 10  # scanned between two opportunities for other threads to run
_SURROGATE_STARTS = (rb"\ud", rb"\uD")
_BYTE_ORDER_MARK = "\ufeff"  # which some clients write before their UTF-8 (RFC 8259, 8.1: a parser may ignore it)


def decode_json(text: bytes | str) -> Any:
    """Decode JSON (RFC 8259) in UTF-8, with or without a byte order mark.

    Raises `ApiError` (400) for anything else, duplicate keys of an object, NaN and Infinity, lone surrogates, and more
    than `MAX_DEPTH` levels of nesting. Texts above `MAX_INLINE_BYTES` must pass `check_structure` first and belong in a
    thread.
    """
    try:
        decoded_text = text if isinstance(text, str) else text.decode()
        decoded = _decoder.decode(decoded_text.removeprefix(_BYTE_ORDER_MARK))
        raw = text.encode() if isinstance(text, str) else text
        if any(
            start in raw for start in _SURROGATE_STARTS
        ):  # a pair is a character; a lone surrogate is not, and cannot be sent back
            json.dumps(decoded, ensure_ascii=False).encode()
        if raw.count(b"{") + raw.count(b"[") > MAX_DEPTH:
            _check_depth(decoded)
    except json.JSONDecodeError as error:
        raise _invalid(f"{error.msg} at line {error.lineno}, column {error.colno}") from None
    except UnicodeDecodeError as error:
        raise _invalid(f"byte {error.start} is not UTF-8") from None
    except UnicodeEncodeError:
        raise _invalid("it contains a lone surrogate") from None
    except RecursionError:
        raise _too_deep() from None
    except ValueError as error:  # from below, or from Python for a number of more than 4,300 digits
        raise _invalid(str(error).partition(";")[0]) from None
    return decoded


def check_structure(body: bytes) -> None:
    """Raise `ApiError` (400) for JSON with more containers, keys or values than any request needs.

    Counts brackets, colons and commas outside of strings in slices, without decoding.
    """
    if sum(map(body.count, (b"{", b"[", b":", b","))) <= MAX_UNCHECKED:
        return
    containers = keys = values = 0
    in_string = False
    at = 0
    while at < len(body):
        end = min(len(body), at + _SLICE_BYTES)
        while end < len(body) and body[end - 1] == ord("\\"):  # do not split an escape sequence
            end += 1
        pieces = body[at:end].replace(rb"\\", b"").replace(rb"\"", b"").split(b'"')
        outside = b"".join(pieces[in_string::2])
        in_string ^= len(pieces) % 2 == 0
        containers += outside.count(b"{") + outside.count(b"[")
        keys += outside.count(b":")
        values += outside.count(b",")
        at = end
        for kind, number, limit in (
            ("objects and arrays", containers, MAX_CONTAINERS),
            ("keys", keys, MAX_KEYS),
            ("values", values, MAX_VALUES),
        ):
            if number > limit:
                raise ApiError(
                    400, f"the body has {number:,} JSON {kind}; at most {limit:,} are allowed", code="body_too_complex"
                )


def _check_depth(decoded: Any) -> None:
    """Raise `ApiError` (400) for a value with too many levels of nesting. The time is that of reading it once."""
    level = [decoded]
    for _ in range(MAX_DEPTH + 1):
        containers = [value for value in level if isinstance(value, (dict, list))]
        if not containers:
            return
        level = [value for each in containers for value in (each.values() if isinstance(each, dict) else each)]
    raise _too_deep()


def _too_deep() -> ApiError:
    message = f"the body has more than {MAX_DEPTH} levels of nested JSON objects and arrays"
    return ApiError(400, message, code="body_too_complex")


def _invalid(why: str) -> ApiError:
    return ApiError(400, f"the body is not valid JSON: {why}", code="invalid_json")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    decoded = dict(pairs)
    if len(decoded) < len(pairs):
        seen: set[str] = set()
        duplicate = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"the key {duplicate[:80]!r} occurs twice in an object")
    return decoded


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


_decoder = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_no_constant)
