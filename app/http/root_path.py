"""`--root-path`: path under which a proxy serves this server, for requests that still contain it."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send


class RootPathMiddleware:
    """Middleware that serves paths below `root_path` as well as without it. Pure ASGI.

    uvicorn prepends it to every path, as ASGI requires behind a proxy that strips it. For requests that already contain
    it, from a proxy that does not strip it or directly from a client, it would appear twice.
    """

    def __init__(self, app: ASGIApp, root_path: str) -> None:
        self._app = app
        self._root_path = root_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "").removeprefix(self._root_path)  # the lifespan scope has no path
        path += "/" if path == self._root_path else ""  # the page, also without a trailing slash
        if path.startswith(f"{self._root_path}/"):
            scope["path"] = path  # in place: the connection keeps this scope and clears extensions in it
        await self._app(scope, receive, send)
