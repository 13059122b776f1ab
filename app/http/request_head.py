"""Checks of request line and headers that the HTTP parser does not make (RFC 9110, RFC 9112)."""

from __future__ import annotations

import ipaddress
import re

from app.errors import ApiError

VERSIONS = ("1.0", "1.1")
_AUTHORITY = re.compile(rb"(?P<host>\[[^\[\]@/]*\]|[A-Za-z0-9._~%!$&'()*+,;=-]*)(:[0-9]{0,5})?")
_ABSOLUTE = re.compile(rb"[A-Za-z][A-Za-z0-9+.-]*://(?P<authority>[^/?#]*)")
_ONCE = {b"host": "Host", b"authorization": "Authorization", b"content-type": "Content-Type"}

Headers = list[tuple[bytes, bytes]]


def check_version(version: str) -> None:
    """Raise `ApiError` (505) for an unsupported HTTP version."""
    if version not in VERSIONS:
        raise ApiError(505, "Only HTTP/1.0 and HTTP/1.1 are supported.", code="http_version_not_supported")


def check_codings(headers: Headers) -> None:
    """Raise `ApiError` (501) for a transfer coding other than chunked."""
    for name, value in headers:
        codings = [coding.strip().lower() for coding in value.split(b",")] if name == b"transfer-encoding" else []
        for coding in codings:
            if coding not in (b"chunked", b"identity", b""):
                raise ApiError(
                    501,
                    f"the transfer coding {_shown(coding)} is not supported; send the body as it is",
                    code="transfer_coding_not_supported",
                )


def check_headers(headers: Headers, url: bytes) -> None:
    """Raise `ApiError` (400) for a duplicate header that must be unique, and for a malformed Host. Replaces Host by the
    authority of a URL in absolute form, which takes precedence (RFC 9112, 3.2.2).
    """
    for lowered, shown in _ONCE.items():
        if sum(name == lowered for name, _ in headers) > 1:
            raise ApiError(400, f"there is more than one {shown} header", code="duplicate_header")
    if absolute := _ABSOLUTE.match(url):
        headers[:] = [(name, value) for name, value in headers if name != b"host"]
        headers.append((b"host", absolute["authority"]))
    host = next((value for name, value in headers if name == b"host"), b"")
    if not _is_authority(host):
        raise ApiError(
            400, f"Host must be a name or an address with an optional port, got {_shown(host)}", code="bad_host"
        )


def _is_authority(value: bytes) -> bool:
    found = _AUTHORITY.fullmatch(value)
    if found is None:
        return False
    if not found["host"].startswith(b"["):
        return True
    try:
        ipaddress.IPv6Address(found["host"][1:-1].decode())
    except ValueError:
        return False
    return True


def _shown(value: bytes) -> str:
    return repr(value[:80].decode("ascii", "replace"))
