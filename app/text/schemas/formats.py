"""Regular expressions of the `format` values that are enforced. They match texts that Python's libraries read, too.

JSON Schema calls formats annotations; values that are not here have no effect. None of the texts has characters that
JSON escapes.
"""

from __future__ import annotations

_YEAR = "(?:[1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])"
_FOURTH = "(?:0[48]|[2468][048]|[13579][26])"  # of two digits, not 00
_LEAP = f"(?:[0-9]{{2}}{_FOURTH}|{_FOURTH}00)"
_DAYS = (
    "(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    "|02-(?:0[1-9]|1[0-9]|2[0-8]))"
)
_DATE = f"(?:{_YEAR}-{_DAYS}|{_LEAP}-02-29)"
_ZONE = "(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
_TIME = rf"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{{1,6}})?{_ZONE}"
_COUNT = "[0-9]{1,4}"
_CLOCK = f"T(?:{_COUNT}H(?:{_COUNT}M)?(?:{_COUNT}S)?|{_COUNT}M(?:{_COUNT}S)?|{_COUNT}S)"
_CALENDAR = f"(?:{_COUNT}Y(?:{_COUNT}M)?(?:{_COUNT}D)?|{_COUNT}M(?:{_COUNT}D)?|{_COUNT}D)"
_OCTET = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_IPV4 = rf"(?:{_OCTET}\.){{3}}{_OCTET}"
_GROUP = "[0-9a-fA-F]{1,4}"
_LAST = f"(?:{_GROUP}:{_GROUP}|{_IPV4})"
_IPV6 = (
    f"(?:(?:{_GROUP}:){{6}}{_LAST}|::(?:{_GROUP}:){{0,5}}{_LAST}|"
    + "|".join(f"(?:{_GROUP}:){{0,{n}}}{_GROUP}::(?:{_GROUP}:){{0,{4 - n}}}{_LAST}" for n in range(5))
    + f"|(?:{_GROUP}:){{0,5}}{_GROUP}::{_GROUP}|::{_GROUP}|(?:{_GROUP}:){{0,6}}{_GROUP}::|::)"
)
_HEX = "[0-9a-fA-F]"
_LABEL = "[a-zA-Z0-9]{1,30}(?:-[a-zA-Z0-9]{1,30})?"
_HOST = rf"(?:{_LABEL}\.)*[a-zA-Z][a-zA-Z0-9]{{0,30}}"
_LOCAL = "[a-zA-Z0-9!#$%&'*+/=?^_`{|}~-]+"
_CHARACTERS = "a-zA-Z0-9._~!$&'()*+,;=:@/-"
_ENCODED = "%[0-9a-fA-F]{2}"
_QUERY = f"(?:[{_CHARACTERS}?]|{_ENCODED})*"
_REST = rf"(?:[{_CHARACTERS}]|{_ENCODED})*(?:\?{_QUERY})?(?:#{_QUERY})?"
_AUTHORITY = rf"//(?:[a-zA-Z0-9._~-]+@)?(?:{_HOST}|{_IPV4}|\[{_IPV6}\])(?::[1-9][0-9]{{0,3}})?"
_NETWORK4 = rf"(?:{_OCTET}\.0\.0\.0/8|(?:{_OCTET}\.){{2}}0\.0/16|(?:{_OCTET}\.){{3}}0/24|{_IPV4}(?:/32)?)"


def _uuid(version: str, variant: str = "[89abAB]") -> str:
    return f"{_HEX}{{8}}-{_HEX}{{4}}-{version}{_HEX}{{3}}-{variant}{_HEX}{{3}}-{_HEX}{{12}}"


def _base64(others: str) -> str:
    """Return the expression of Base64 with two further characters; unused bits are 0."""
    digit = f"[A-Za-z0-9{others}]"
    return f"(?:{digit}{{4}})*(?:{digit}[AQgw]==|{digit}{{2}}[AEIMQUYcgkosw048]=)?"


FORMATS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "duration": f"P(?:{_CALENDAR}(?:{_CLOCK})?|{_CLOCK}|{_COUNT}W)",
    "email": rf"{_LOCAL}(?:\.{_LOCAL})*@{_HOST}\.[a-zA-Z]{{2,24}}",
    "hostname": _HOST,
    "ipv4": _IPV4,
    "ipv6": _IPV6,
    "ipvanyaddress": f"(?:{_IPV4}|{_IPV6})",
    "ipv4network": _NETWORK4,
    "ipvanynetwork": f"(?:{_NETWORK4}|{_IPV6}(?:/128)?)",
    "ipv6network": f"{_IPV6}(?:/128)?",
    "ipv4interface": f"{_IPV4}(?:/(?:[12]?[0-9]|3[0-2]))?",
    "ipvanyinterface": f"{_IPV4}(?:/(?:[12]?[0-9]|3[0-2]))?",
    "uuid": f"{_HEX}{{8}}(?:-{_HEX}{{4}}){{3}}-{_HEX}{{12}}",
    **{f"uuid{version}": _uuid(version) for version in "1345678"},
    "uri": f"[a-zA-Z][a-zA-Z0-9+.-]{{1,30}}:(?:{_AUTHORITY}(?:/{_REST})?|[a-zA-Z0-9]{_REST})",
    "base64": _base64("+/"),
    "base64url": _base64("_-"),
    "byte": _base64("+/"),  # of OpenAPI
}  # fmt: skip
