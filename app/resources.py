"""Where the files lie that are served or loaded, in a checkout and in an installation."""

from __future__ import annotations

from functools import cache
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


@cache
def root() -> Path:
    """The folder that holds static/, templates/ and models/: inside the package when installed, else the checkout."""
    bundle = _PACKAGE / "bundle"
    return bundle if bundle.is_dir() else _PACKAGE.parent


def static_dir() -> Path:
    """ES modules, CSS and vendored libraries."""
    return root() / "static"


def templates_dir() -> Path:
    """Jinja2 templates."""
    return root() / "templates"


def demo_model() -> Path:
    """The model that ships with Carousel."""
    return root() / "models" / "demo"
