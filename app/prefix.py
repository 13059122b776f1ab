"""`--root-path`: the path below which a proxy serves this server, for requests that still have it."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send


class Prefix:
    """Answers below `root_path` as well as without it. Pure ASGI.

    uvicorn puts it in front of every path, as ASGI wants it behind a proxy that has stripped it. In what came with it,
    from a proxy that strips nothing or past every proxy, it would stand twice.
    """

    def __init__(self, app: ASGIApp, root_path: str) -> None:
        self._app = app
        self._root_path = root_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        came = scope.get("path", "").removeprefix(self._root_path)  # the lifespan has none
        came += "/" if came == self._root_path else ""  # the page, as it is at an address without a path
        if came.startswith(f"{self._root_path}/"):
            scope["path"] = came  # in place: the connection keeps this scope, and takes back by it what it has lent
        await self._app(scope, receive, send)
