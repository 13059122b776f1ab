"""Locations of a server's store: the default file, and one for each of several API processes."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

NO_STORE = "none"  # value of --store that keeps nothing


def process_file(path: Path, index: int) -> Path:
    """Return the store of an API process by its number. The first one has the file itself, so that a service keeps its
    state if it gets a second process.
    """
    return path.with_stem(f"{path.stem}-api{index}") if index else path


def files_of_processes(path: Path, first: int = 0) -> dict[int, Path]:
    """Return the existing stores of API processes from a number on, in order of their numbers. path: of process 0."""
    pattern = re.compile(rf"{re.escape(path.stem)}-api([1-9]\d*){re.escape(path.suffix)}")
    try:
        numbers = [int(match[1]) for each in path.parent.iterdir() if (match := pattern.fullmatch(each.name))]
    except OSError:
        numbers = []
    found = {index: process_file(path, index) for index in (0, *sorted(numbers)) if index >= first}
    return {index: file for index, file in found.items() if file.is_file()}


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
