"""Static files: versioned addresses, compressed bodies, and the bundles of the pages.

A file is served under `/static/<version>/...`, where it may be cached indefinitely, and under `/static/...`, where
browsers revalidate it. The version is a hash of all files, so relative imports of modules and style sheets are
versioned too.

The modules of a page are one file, and so are its style sheets: `js/main.bundle.js` is `js/main.js` with all that it
imports. A bundle is created at its first request, and again after one of its files has changed.
"""

from __future__ import annotations

import gzip
import hashlib
import mimetypes
import re
from functools import cache, lru_cache
from pathlib import Path, PurePosixPath
from typing import Any

import anyio.to_thread
from starlette.datastructures import Headers
from starlette.responses import JSONResponse, Response
from starlette.staticfiles import StaticFiles
from starlette.types import Receive, Scope, Send

import app.http.bundle
from app.errors import error_body
from app.resources import static_dir

IMMUTABLE = "public, max-age=31536000, immutable"
COMPRESSED = frozenset({".js", ".mjs", ".css", ".svg"})
ENTRIES = frozenset(
    {"js/main.js", "js/engine/main.js", "css/chat-page.css", "css/docs-page.css", "css/engine-page.css"}
)

mimetypes.add_type("font/woff2", ".woff2")
mimetypes.add_type("text/javascript", ".js")
mimetypes.add_type("text/javascript", ".mjs")


@cache
def version() -> str:
    """Return a short hash of the names and contents of all static files, and of the program that joins them."""
    digest = hashlib.sha256(Path(app.http.bundle.__file__).read_bytes())
    root = static_dir()
    for path in sorted(path for path in root.rglob("*") if path.is_file()):
        digest.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]


def bundled(path: str) -> str:
    """Return the path of the bundle of an entry: `js/main.bundle.js` for `js/main.js`."""
    if path not in ENTRIES:
        raise ValueError(f"{path} is not the entry of a page: {', '.join(sorted(ENTRIES))}")
    stem, dot, suffix = path.rpartition(".")
    return f"{stem}.bundle{dot}{suffix}"


def _entry_of(path: str) -> str | None:
    """Return the entry of a bundle's path; None for another path."""
    return next((entry for entry in ENTRIES if bundled(entry) == path), None)


def _stamp(root: Path) -> int:
    """Return a number that changes with any file in a folder."""
    files = sorted(path for path in root.rglob("*") if path.is_file())
    return hash(tuple((str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in files))


@lru_cache(maxsize=2 * len(ENTRIES))
def _bundle(root: Path, entry: str, stamp: int) -> tuple[bytes, bytes]:
    """Return a bundle uncompressed and compressed; the stamp invalidates the cache when a file changes."""
    content = app.http.bundle.bundle(root, entry).encode()
    return content, gzip.compress(content, 9, mtime=0)


@cache
def _gzipped(path: str, size: int, modified: int) -> tuple[bytes, str]:
    """Return the compressed content of a file and its ETag; size and modification time invalidate the cache."""
    content = Path(path).read_bytes()
    return gzip.compress(content, 9, mtime=0), _etag(content, is_gzip=True)


def _etag(content: bytes, *, is_gzip: bool) -> str:
    return f'"{hashlib.sha256(content).hexdigest()[:24]}{"-gzip" if is_gzip else ""}"'


def _content_range(headers: list[tuple[bytes, bytes]]) -> dict[str, str]:
    """Return the header of a refused range that has the size of the file."""
    return {name.decode(): value.decode() for name, value in headers if name.lower() == b"content-range"}


def accepts_gzip(headers: Headers) -> bool:
    """Return whether a client accepts gzip (RFC 9110, 12.5.3)."""
    for part in headers.get("accept-encoding", "").split(","):
        coding, _, weight = part.partition(";")
        if coding.strip().lower() in ("gzip", "x-gzip"):
            return weight.replace(" ", "").lower() not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False


class Assets(StaticFiles):
    """Static files, under a versioned path or an unversioned one."""

    def __init__(self) -> None:
        super().__init__(directory=static_dir())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a file. A refused range gets the common error format, and errors are not cached."""
        is_replaced = False

        async def send_with_errors(message: Any) -> None:
            nonlocal is_replaced
            if is_replaced:
                return
            if message["type"] == "http.response.start" and message["status"] >= 400:
                is_replaced = True
                status = message["status"]
                requested = Headers(scope=scope).get("range", "")[:80]
                error = error_body(status, f"the range {requested!r} is invalid for this file", "Range", "bad_range")
                headers = {"Cache-Control": "no-store", **_content_range(message["headers"])}
                await JSONResponse(error, status, headers)(scope, receive, send)
                return
            await send(message)

        await super().__call__(scope, receive, send_with_errors)

    async def get_response(self, path: str, scope: Scope) -> Response:
        """Return the file at a path, compressed if the client accepts that and requests the whole file."""
        first, _, rest = path.partition("/")
        is_versioned = first == version()
        if re.fullmatch(r"[0-9a-f]{12}", first):  # of another version too, for pages that were open during an update
            path = rest
        headers = Headers(scope=scope)
        entry = _entry_of(path)
        if entry and scope["method"] in ("GET", "HEAD"):
            response = await self._bundle(entry, headers)
        else:
            response = await self._file(path, scope, headers)
        response.headers["Cache-Control"] = IMMUTABLE if is_versioned else "no-cache"
        response.headers["X-Content-Type-Options"] = "nosniff"
        return response

    async def _file(self, path: str, scope: Scope, headers: Headers) -> Response:
        response = await super().get_response(path, scope)
        suffix = PurePosixPath(path).suffix
        if suffix in COMPRESSED and response.status_code in (200, 304):
            if accepts_gzip(headers) and "range" not in headers:
                response = await self._compressed(path, headers, response.media_type or "")
            response.headers["Vary"] = "Accept-Encoding"
        return response

    async def _bundle(self, entry: str, headers: Headers) -> Response:
        """Return a whole bundle; a range request is answered with the whole bundle (RFC 9110, 14.2)."""
        root = Path(self.all_directories[0])
        stamp = await anyio.to_thread.run_sync(_stamp, root)
        plain, compressed = await anyio.to_thread.run_sync(_bundle, root, entry, stamp)
        is_gzip = accepts_gzip(headers)
        media_type = mimetypes.guess_type(entry)[0] or ""
        response = _unless_known(
            compressed if is_gzip else plain, _etag(plain, is_gzip=is_gzip), headers, media_type, is_gzip=is_gzip
        )
        response.headers["Vary"] = "Accept-Encoding"
        return response

    async def _compressed(self, path: str, headers: Headers, media_type: str) -> Response:
        full, status = self.lookup_path(path)
        assert status is not None
        body, etag = await anyio.to_thread.run_sync(_gzipped, full, status.st_size, status.st_mtime_ns)
        return _unless_known(body, etag, headers, media_type, is_gzip=True)


def _unless_known(body: bytes, etag: str, headers: Headers, media_type: str, *, is_gzip: bool) -> Response:
    """Return the body, or 304 to a client that has it already."""
    known = [each.strip().removeprefix("W/") for each in headers.get("if-none-match", "").split(",")]
    if etag in known:
        return Response(status_code=304, headers={"ETag": etag})
    encoding = {"Content-Encoding": "gzip"} if is_gzip else {}
    return Response(body, media_type=media_type, headers={"ETag": etag, **encoding})
