"""Static files: versioned addresses, compressed bodies, and the modules that a page will ask for.

A file is served under `/static/<version>/...`, where it may be cached for ever, and under `/static/...`, where browsers
ask again. The version is a hash of all files, so relative imports of modules and style sheets are versioned too.
"""

from __future__ import annotations

import gzip
import hashlib
import mimetypes
import re
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any

import anyio.to_thread
from starlette.datastructures import Headers
from starlette.responses import JSONResponse, Response
from starlette.staticfiles import StaticFiles
from starlette.types import Receive, Scope, Send

from app.errors import error_body
from app.resources import static_dir

IMMUTABLE = "public, max-age=31536000, immutable"
COMPRESSED = frozenset({".js", ".mjs", ".css", ".svg"})
# Static imports and re-exports; those that load on demand have parentheses.
IMPORT = re.compile(r"""^(?:import|export)\b[^"'()]*?["'](\.{1,2}/[^"']+)["']""", re.M)

mimetypes.add_type("font/woff2", ".woff2")
mimetypes.add_type("text/javascript", ".js")
mimetypes.add_type("text/javascript", ".mjs")


@cache
def version() -> str:
    """Return a short hash of the names and contents of all static files."""
    digest = hashlib.sha256()
    root = static_dir()
    for path in sorted(path for path in root.rglob("*") if path.is_file()):
        digest.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]


@cache
def modules_of(entry: str) -> tuple[str, ...]:
    """Return the modules that `entry` imports, directly or not, each once, as paths in the static folder."""
    found = [entry]
    for module in found:
        for target in IMPORT.findall((static_dir() / module).read_text()):
            path = _normal(PurePosixPath(module).parent / target)
            if path not in found:
                found.append(path)
    return tuple(found[1:])


def _normal(path: PurePosixPath) -> str:
    parts: list[str] = []
    for part in path.parts:
        if part == "..":
            parts.pop()
        else:
            parts.append(part)
    return "/".join(parts)


@cache
def _gzipped(path: str, size: int, modified: int) -> tuple[bytes, str]:
    """The compressed content of a file and its ETag; size and modification time make a changed file another one."""
    content = Path(path).read_bytes()
    return gzip.compress(content, 9, mtime=0), f'"{hashlib.sha256(content).hexdigest()[:24]}-gzip"'


def _content_range(headers: list[tuple[bytes, bytes]]) -> dict[str, str]:
    """Return the header of a refused range that names the size of the file."""
    return {name.decode(): value.decode() for name, value in headers if name.lower() == b"content-range"}


def accepts_gzip(headers: Headers) -> bool:
    """Return true if a client takes gzip (RFC 9110, 12.5.3)."""
    for part in headers.get("accept-encoding", "").split(","):
        coding, _, weight = part.partition(";")
        if coding.strip().lower() in ("gzip", "x-gzip"):
            return weight.replace(" ", "").lower() not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False


class Assets(StaticFiles):
    """The static folder below a version or without one."""

    def __init__(self) -> None:
        super().__init__(directory=static_dir())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a file. A refused range is answered in the shape of all errors, and no error is cached."""
        is_replaced = False

        async def send_with_errors(message: Any) -> None:
            nonlocal is_replaced
            if is_replaced:
                return
            if message["type"] == "http.response.start" and message["status"] >= 400:
                is_replaced = True
                status = message["status"]
                asked = Headers(scope=scope).get("range", "")[:80]
                error = error_body(status, f"the range {asked!r} is not one of this file", "Range", "bad_range")
                headers = {"Cache-Control": "no-store", **_content_range(message["headers"])}
                await JSONResponse(error, status, headers)(scope, receive, send)
                return
            await send(message)

        await super().__call__(scope, receive, send_with_errors)

    async def get_response(self, path: str, scope: Scope) -> Response:
        """The file that a path names, compressed where the client takes that and asks for all of it."""
        first, _, rest = path.partition("/")
        is_versioned = first == version()
        if re.fullmatch(
            r"[0-9a-f]{12}", first
        ):  # of another version, too: a page that was open when the server changed
            path = rest
        response = await super().get_response(path, scope)
        headers = Headers(scope=scope)
        suffix = PurePosixPath(path).suffix
        if suffix in COMPRESSED and response.status_code in (200, 304):
            if accepts_gzip(headers) and "range" not in headers:
                response = await self._compressed(path, headers, response.media_type or "")
            response.headers["Vary"] = "Accept-Encoding"
        response.headers["Cache-Control"] = IMMUTABLE if is_versioned else "no-cache"
        response.headers["X-Content-Type-Options"] = "nosniff"
        return response

    async def _compressed(self, path: str, headers: Headers, media_type: str) -> Response:
        full, status = self.lookup_path(path)
        assert status is not None
        body, etag = await anyio.to_thread.run_sync(_gzipped, full, status.st_size, status.st_mtime_ns)
        known = [each.strip().removeprefix("W/") for each in headers.get("if-none-match", "").split(",")]
        if etag in known:
            return Response(status_code=304, headers={"ETag": etag})
        return Response(body, media_type=media_type, headers={"ETag": etag, "Content-Encoding": "gzip"})
