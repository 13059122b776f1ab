"""Raw results with where they come from: device, versions, commit, time. One JSON file per run of a script."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = ("torch", "triton", "transformers", "starlette", "uvicorn", "sse-starlette")
FOLDER = Path(__file__).parent / "results"


def origin() -> dict[str, Any]:
    """What a reader needs to judge a figure."""
    return {
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": _commit(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "load_before": os.getloadavg()[0],
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in PACKAGES},
    }


def save(name: str, settings: dict[str, Any], rows: list[dict[str, Any]], summary: dict[str, Any]) -> Path:
    """Write benchmarks/results/<name>.json, replacing the last run's."""
    FOLDER.mkdir(exist_ok=True)
    path = FOLDER / f"{name}.json"
    content = {"origin": origin(), "settings": settings, "summary": summary, "rows": rows}
    path.write_text(json.dumps(content, indent=1) + "\n")
    return path


def spread(values: list[float]) -> dict[str, float]:
    """Median and range."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def microseconds(seconds: list[float]) -> dict[str, float]:
    """Median and range of times."""
    return spread([1e6 * one for one in seconds])


def _commit() -> str:
    """As git describes it, or as CAROUSEL_COMMIT says: a copy of the tree may have no history."""
    if told := os.environ.get("CAROUSEL_COMMIT"):
        return told
    git = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        described = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:  # a GPU machine may have no git
        described = ""
    return described or "unknown"


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:  # a GPU machine has what the engine needs, and no server
        return None


def _processor() -> str:
    """Its name and, as generations of one vendor may share a name, its family and model."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        first = info.read_text().split("\n\n")[0]
        pairs = (line.partition(":") for line in first.splitlines())
        fields = {key.strip(): value.strip() for key, _, value in pairs}
        if "model name" in fields:
            numbers = [f"{name} {fields[name]}" for name in ("cpu family", "model") if name in fields]
            return ", ".join([fields["model name"], *numbers])
    return platform.processor() or platform.machine()
