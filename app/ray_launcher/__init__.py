"""Engines and API processes as actors of a Ray cluster: `serve deploy deploy/ray/carousel.yaml`.

Ray starts them, restarts them and finds room for them. Tokens never pass through Ray: API processes connect to engines
over TCP, as without Ray. Only functions import Ray, which is an optional dependency.
"""

from __future__ import annotations

from typing import Any


def app(args: dict[str, Any]) -> Any:
    """Return the application for Ray Serve. args: see `app.ray_launcher.arguments`. Raises `ConfigError`."""
    from app.ray_launcher.deployment import build_application

    return build_application(args)
