"""Run `carousel` where a host name stands for the addresses in a file, which may change: a name service for tests.

python -m tests.named_hosts NAME FILE serve ...
"""

from __future__ import annotations

import socket
import sys
from pathlib import Path
from typing import Any

from app.__main__ import main


def resolve_from_file(name: str, file: Path) -> None:
    """Let `socket.getaddrinfo` find a name at the addresses in the lines of a file."""
    getaddrinfo = socket.getaddrinfo

    def resolve(host: Any, port: Any, *args: Any, **options: Any) -> list[Any]:
        hosts = file.read_text().split() if host == name else [host]
        return [found for each in hosts for found in getaddrinfo(each, port, *args, **options)]

    socket.getaddrinfo = resolve


if __name__ == "__main__":
    _, name, file, *arguments = sys.argv
    resolve_from_file(name, Path(file))
    sys.argv[1:] = arguments
    sys.exit(main())
