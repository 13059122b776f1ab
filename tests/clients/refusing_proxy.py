"""Proxy that refuses and records every request, so that clients reach nothing but loopback addresses."""

from __future__ import annotations

import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager

REFUSAL = b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy")


class RefusingProxy(socketserver.ThreadingTCPServer):
    """Proxy on a free port of 127.0.0.1. targets: first lines of the refused requests."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Refusal)
        self.targets: list[str] = []

    @property
    def environment(self) -> dict[str, str]:
        """Return the variables with which a program uses this proxy for all but loopback addresses."""
        url = f"http://127.0.0.1:{self.server_address[1]}"
        return dict.fromkeys(VARIABLES, url) | {"NO_PROXY": "127.0.0.1,localhost", "no_proxy": "127.0.0.1,localhost"}


class _Refusal(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        target = self.rfile.readline(4096).decode("latin-1").strip()
        assert isinstance(self.server, RefusingProxy)
        self.server.targets.append(target)
        self.wfile.write(REFUSAL)


@contextmanager
def refusing_proxy() -> Iterator[RefusingProxy]:
    """Run a proxy for the duration of a block."""
    with RefusingProxy() as proxy:
        thread = threading.Thread(target=proxy.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield proxy
        finally:
            proxy.shutdown()
            thread.join()
