"""Raw results with their origin: device, versions, commit, time. One JSON file per script."""

from __future__ import annotations

import json
import math
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
    """Return the circumstances of a measurement."""
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
    """Write benchmarks/results/<name>.json, replacing the previous run's file, and return its path.

    The text is compact, with a line for each row, and numbers have five digits.
    """
    FOLDER.mkdir(exist_ok=True)
    path = FOLDER / f"{name}.json"
    head = {"origin": origin(), "settings": settings, "summary": summary}
    lines = [f"{json.dumps(key)}:{_compact(value)}" for key, value in head.items()]
    lines.append('"rows":[\n' + ",\n".join(map(_compact, rows)) + "\n]")
    path.write_text("{" + ",\n".join(lines) + "}\n")
    return path


def _compact(value: Any) -> str:
    return json.dumps(_rounded(value), separators=(",", ":"))


def _rounded(value: Any) -> Any:
    """Return a JSON value with five significant digits in each float, and whole numbers beyond those."""
    match value:
        case float() if math.isfinite(value):
            return round(value) if abs(value) >= 1e5 else float(f"{value:.5g}")
        case dict():
            return {key: _rounded(each) for key, each in value.items()}
        case list() | tuple():
            return [_rounded(each) for each in value]
    return value


def spread(values: list[float]) -> dict[str, float]:
    """Return median and range."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def microseconds(seconds: list[float]) -> dict[str, float]:
    """Return median and range of times, converted to microseconds."""
    return spread([1e6 * one for one in seconds])


def _commit() -> str:
    """Return the commit from CAROUSEL_COMMIT, for copies of the tree without history, or from git."""
    if commit := os.environ.get("CAROUSEL_COMMIT"):
        return commit
    git = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        described = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:  # a GPU machine may have no git
        described = ""
    return described or "unknown"


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:  # a GPU machine may have only the engine's packages
        return None


def _processor() -> str:
    """Return the processor's name, family and model; several generations may share a name."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        first = info.read_text().split("\n\n")[0]
        pairs = (line.partition(":") for line in first.splitlines())
        fields = {key.strip(): value.strip() for key, _, value in pairs}
        if "model name" in fields:
            numbers = [f"{name} {fields[name]}" for name in ("cpu family", "model") if name in fields]
            return ", ".join([fields["model name"], *numbers])
    return platform.processor() or platform.machine()
