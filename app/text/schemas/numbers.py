"""Regular expressions of numbers between bounds, with a limit of digits so that every number ends."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal, localcontext

from app.text.schemas.nodes import Node, exact

MAX_INTEGER_DIGITS = 18  # without bounds, so that it fits into 64 bits
MAX_BOUND_DIGITS = 60  # of a bound that is written into an expression
MAX_NUMBER_DIGITS = 15  # on either side of the point: all of them are significant in a double
# Its largest value is below 10**307, which a double holds.
NUMBER = r"-?(?:0|[1-9][0-9]{0,16})(?:\.[0-9]{1,17})?(?:[eE][+-]?(?:[0-9]{1,2}|1[0-9]{2}|2[0-8][0-9]))?"
_WHOLE = r"(?:0|[1-9][0-9]{0,14})"


class OutOfRange(Exception):
    """A bound has too many digits. keyword: its keyword."""

    def __init__(self, keyword: str) -> None:
        super().__init__(keyword)
        self.keyword = keyword


def integer_expression(node: Node) -> str:
    """Return a regular expression for the integers of a node without multiples. Raises `OutOfRange`."""
    low, high = integer_bounds(node)
    if low < 0 and high < 0:
        return f"-(?:{'|'.join(_between(-high, -low))})"
    negative = f"-(?:{'|'.join(_between(1, -low))})|" if low < 0 else ""
    return f"(?:{negative}{'|'.join(_between(max(low, 0), high))})"


def integer_bounds(node: Node) -> tuple[int, int]:
    """Return the least and the greatest integer of a node. Raises `OutOfRange`."""
    largest: int = 10**MAX_INTEGER_DIGITS - 1
    low, high = node.get("minimum"), node.get("maximum")
    limit = 10**MAX_BOUND_DIGITS
    for keyword, bound in (("minimum", low), ("maximum", high)):
        if bound is not None and (bound >= limit if keyword == "minimum" else bound <= -limit):
            raise OutOfRange(keyword)
    if low is not None and low <= -limit:
        low = None  # all integers that are written satisfy it
    if high is not None and high >= limit:
        high = None
    if low is None:
        low = -largest if high is None or high > -largest else 10 * high
    if high is None:
        high = largest if low < largest else 10 * low
    return low, high


def _between(low: int, high: int) -> Iterator[str]:
    """Return expressions whose alternatives are the integers from `low` to `high`, both at least 0."""
    whole: list[int] = []  # lengths of which all integers are in the range
    for digits in range(len(str(low)), len(str(high)) + 1):
        least, greatest = 10 ** (digits - 1) if digits > 1 else 0, 10**digits - 1
        if low <= least and greatest <= high and digits > 1:
            whole.append(digits)
        else:
            yield from _of_equal_length(str(max(low, least)), str(min(high, greatest)))
    if whole:
        yield f"[1-9][0-9]{{{whole[0] - 1},{whole[-1] - 1}}}"


def _of_equal_length(low: str, high: str) -> Iterator[str]:
    if low == high:
        yield low
        return
    at = next(at for at, (a, b) in enumerate(zip(low, high, strict=True)) if a != b)
    prefix, rest = low[:at], len(low) - at - 1
    first, last = int(low[at]), int(high[at])
    if low[at + 1 :].strip("0"):
        yield from (f"{prefix}{first}{each}" for each in _of_equal_length(low[at + 1 :], "9" * rest))
        first += 1
    if high[at + 1 :].strip("9"):
        yield from (f"{prefix}{last}{each}" for each in _of_equal_length("0" * rest, high[at + 1 :]))
        last -= 1
    if first <= last:
        yield f"{prefix}[{first}-{last}]" + (f"[0-9]{{{rest}}}" if rest else "")


def number_expression(node: Node) -> str:
    """Return an expression of a terminal for the numbers of a node. Raises `OutOfRange`.

    Numbers with bounds are written without exponents. Multiples must be powers of ten below 1.
    """
    low, is_low_open = _bound(node, "minimum", "exclusiveMinimum")
    high, is_high_open = _bound(node, "maximum", "exclusiveMaximum")
    decimals = decimals_of(node)
    if low is None and high is None:
        return f"/{NUMBER}/" if decimals is None else f"/-?{_WHOLE}{_fraction(decimals)}/"
    places = MAX_NUMBER_DIGITS if decimals is None else decimals
    whole = max(_whole_digits(each) for each in (low, high))
    # Beside a bound, all digits must be significant for the comparison of doubles.
    fraction = _fraction(max(1, min(places, MAX_NUMBER_DIGITS - whole)))
    zero, parts = Decimal(0), []
    if low is None or low < 0:
        limits = [(zero, True, "least")]
        limits += [(-low, is_low_open, "most")] if low is not None else []
        limits += [(-high, is_high_open, "least")] if high is not None and high <= 0 else []
        parts.append(f'"-" {_intersection(fraction, limits)}')
    if high is None or high > 0 or (high == 0 and not is_high_open):
        limits = [(low, is_low_open, "least")] if low is not None and low >= 0 else []
        limits += [(high, is_high_open, "most")] if high is not None else []
        parts.append(_intersection(fraction, limits))
    return f"({' | '.join(parts)})"


def decimals_of(node: Node) -> int | None:
    """Return the decimal places that `multipleOf` allows if it is a power of ten below 1; otherwise None."""
    multiple = exact(node.get("multipleOf", 1))
    places = len(str(multiple.denominator)) - 1
    is_power = multiple.numerator == 1 and places and multiple.denominator == 10**places
    return min(places, MAX_NUMBER_DIGITS) if is_power else None


def _fraction(places: int) -> str:
    return rf"(?:\.[0-9]{{1,{places}}})?"


def _whole_digits(bound: Decimal | None) -> int:
    return 1 if bound is None else len(str(abs(int(bound))))


def _bound(node: Node, inclusive: str, exclusive: str) -> tuple[Decimal | None, bool]:
    """Return a bound in at most MAX_NUMBER_DIGITS decimal places, and whether it is excluded; None if there is none."""
    keyword = exclusive if exclusive in node else inclusive
    if keyword not in node:
        return None, False
    bound = node[keyword]
    is_lower = inclusive == "minimum"
    if abs(bound) >= 10**MAX_NUMBER_DIGITS:
        if (bound < 0) == is_lower:
            return None, False  # all numbers that are written satisfy it
        raise OutOfRange(keyword)
    with localcontext(prec=2 * MAX_BOUND_DIGITS):
        places = Decimal(1).scaleb(-MAX_NUMBER_DIGITS)
        exact_bound = Decimal(bound) if isinstance(bound, int) else Decimal(repr(bound))
        rounded = exact_bound.quantize(places, ROUND_CEILING if is_lower else ROUND_FLOOR)
        return rounded, keyword == exclusive and rounded == exact_bound


def _intersection(fraction: str, limits: list[tuple[Decimal, bool, str]]) -> str:
    numbers = [f"/{_WHOLE}{fraction}/"]
    numbers += [f"/{_at_least(*each[:2]) if each[2] == 'least' else _at_most(*each[:2])}/" for each in limits]
    return f"({' & '.join(numbers)})"


def _at_least(bound: Decimal, is_open: bool) -> str:
    """Return an expression for decimals from a bound of at least 0 on."""
    whole, fraction = _digits(bound)
    above = [*_between(whole + 1, 10**MAX_NUMBER_DIGITS - 1)]
    beside = [rf"\.{fraction[:at]}[{int(digit) + 1}-9][0-9]*" for at, digit in enumerate(fraction) if digit != "9"]
    if is_open:
        beside.append(rf"\.{fraction}[0-9]*[1-9][0-9]*")
    else:
        beside.append(rf"\.{fraction}[0-9]*" if fraction else r"(?:\.[0-9]+)?")
    return rf"(?:(?:{'|'.join(above)})(?:\.[0-9]+)?|{whole}(?:{'|'.join(beside)}))"


def _at_most(bound: Decimal, is_open: bool) -> str:
    """Return an expression for decimals from 0 up to a bound."""
    whole, fraction = _digits(bound)
    parts = []
    if whole:
        parts.append(rf"(?:{'|'.join(_between(0, whole - 1))})(?:\.[0-9]+)?")
    beside = [rf"\.{fraction[:at]}[0-{int(digit) - 1}][0-9]*" for at, digit in enumerate(fraction) if digit != "0"]
    beside += [rf"\.{fraction[:at]}" for at in range(1, len(fraction))]
    if not is_open:
        beside.append(rf"\.{fraction}0*" if fraction else r"\.0+")
    if fraction or not is_open:
        beside.append("")
    if beside:
        parts.append(f"{whole}(?:{'|'.join(beside)})")
    return f"(?:{'|'.join(parts)})"


def _digits(bound: Decimal) -> tuple[int, str]:
    """Return the whole part of a decimal, and the digits of its fraction without trailing zeros."""
    whole, _, fraction = f"{bound:f}".partition(".")
    return int(whole), fraction.rstrip("0")
