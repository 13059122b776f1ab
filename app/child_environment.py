"""The environment of child processes."""

from __future__ import annotations

import os
from pathlib import Path

import engine

# Only this process checks keys and accesses the model hub; /proc shows a process's environment to its user.
SECRET_VARIABLES = frozenset(
    {
        "CAROUSEL_API_KEY",
        "CAROUSEL_OPERATOR_KEY",
        "CAROUSEL_METRICS_KEY",
        "CAROUSEL_MCP",
        "HF_TOKEN",
        "HUGGING_FACE_HUB_TOKEN",
    }
)


def child_environment() -> dict[str, str]:
    """Return this process's environment without keys and tokens."""
    return {name: value for name, value in os.environ.items() if name not in SECRET_VARIABLES}


def module_environment() -> dict[str, str]:
    """Return the child environment with which `python -m` finds this installation's modules from any folder."""
    path = str(Path(engine.__file__).resolve().parent.parent)
    paths = [path, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return {**child_environment(), "PYTHONPATH": os.pathsep.join(paths)}
