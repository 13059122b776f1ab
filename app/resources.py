"""Locations of served and loaded files, in a checkout and in an installation."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


@cache
def root() -> Path:
    """Return the folder with static/, templates/ and models/: inside the package when installed, else the checkout."""
    bundle = _PACKAGE / "bundle"
    return bundle if bundle.is_dir() else _PACKAGE.parent


def static_dir() -> Path:
    """Return the folder of ES modules, CSS and vendored libraries."""
    return root() / "static"


def templates_dir() -> Path:
    """Return the folder of Jinja2 templates."""
    return root() / "templates"


def demo_model() -> Path:
    """Return the folder of the model that ships with Carousel."""
    return root() / "models" / "demo"


def fetched_models() -> Path:
    """Return the folder of fetched models: models/ of a checkout, else one in the user's cache folder, which may not
    exist yet.
    """
    if root() == _PACKAGE.parent:
        return root() / "models"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()) / "carousel" / "models"
