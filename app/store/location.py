"""Location of a server's store if no option names one."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

NO_STORE = "none"  # value of --store that keeps nothing


def default_file(port: int, environment: Mapping[str, str] = os.environ) -> Path | None:
    """Return the file of the server at a port: in $STATE_DIRECTORY (systemd), $XDG_STATE_HOME/carousel, or
    ~/.local/state/carousel. None without a home folder.
    """
    name = f"store-{port}.db"
    if given := environment.get("STATE_DIRECTORY"):
        return Path(given.partition(":")[0]) / name  # systemd separates several folders by colons
    if given := environment.get("XDG_STATE_HOME"):
        return Path(given) / "carousel" / name
    try:
        home = Path.home()
    except RuntimeError:
        return None
    return home / ".local" / "state" / "carousel" / name
