"""Benchmarks of this checkout and of another one in alternating runs, to see whether a change made anything slower.

Each round runs every benchmark once in both checkouts; which one begins alternates. A figure is this checkout's median
relative to the other's of the same round. Both checkouts need their own .venv (`make install`); the result files that a
benchmark overwrites are restored.

    git worktree add ../before COMMIT && make -C ../before install
    python -m benchmarks.trees ../before --rounds 3
    python -m benchmarks.trees ../before "scheduler_cost --runs 1"      # only this one
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.results import save, spread

HERE = Path(__file__).resolve().parent.parent
BENCHMARKS = (
    "peers --peers carousel --streams 1,8,16 --runs 1",
    "http_overhead --runs 1",
    "scheduler_cost --runs 1",
    "start --runs 1",
)
THIS, OTHER = "this", "other"


def medians(summary: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, float]]:
    """Yield name and median of each figure in a benchmark's summary."""
    if "median" in summary:
        yield ", ".join(path), summary["median"]
        return
    for key, value in summary.items():
        if isinstance(value, dict):
            yield from medians(value, (*path, key))


def run(tree: Path, command: str) -> dict[str, float]:
    """Run one benchmark in a checkout and return its figures. Raises `CalledProcessError`."""
    name, *arguments = shlex.split(command)
    python = tree / ".venv/bin/python"
    subprocess.run(
        [str(python), "-m", f"benchmarks.{name}", *arguments], cwd=tree, check=True, stdout=subprocess.DEVNULL
    )
    found = json.loads((tree / f"benchmarks/results/{name}.json").read_text())["summary"]
    restored = [f"benchmarks/results/{name}.{kind}" for kind in ("json", "svg")]
    tracked = subprocess.run(["git", "ls-files", *restored], cwd=tree, capture_output=True, text=True, check=True)
    if tracked.stdout:
        subprocess.run(["git", "checkout", "--quiet", *tracked.stdout.split()], cwd=tree, check=True)
    return dict(medians(found))


def main() -> None:
    """Measure, print and save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path, help="the other checkout")
    parser.add_argument("benchmarks", nargs="*", default=BENCHMARKS, metavar="BENCHMARK", help="name and arguments")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    trees = {THIS: HERE, OTHER: options.other.resolve()}
    rows: list[dict[str, Any]] = []
    for number in range(options.rounds):
        order = (THIS, OTHER) if number % 2 else (OTHER, THIS)
        for command in options.benchmarks:
            for tree in order:
                figures = run(trees[tree], command)
                rows += [
                    {"round": number, "benchmark": command, "tree": tree, "figure": name, "value": value}
                    for name, value in figures.items()
                ]
            print(f"round {number + 1} of {options.rounds}: {command}", file=sys.stderr)
    save("trees", {"rounds": options.rounds, "other": _commit(trees[OTHER])}, rows, summary := compare(rows))
    for name, ratio in summary.items():
        print(f"{ratio['median']:6.2f} ({ratio['min']:.2f} to {ratio['max']:.2f})  {name}")


def compare(rows: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Return the ratio of this checkout to the other one for each figure that both have."""
    values: dict[tuple[str, int, str], float] = {}
    for row in rows:
        values[f"{row['benchmark'].split()[0]}: {row['figure']}", row["round"], row["tree"]] = row["value"]
    ratios = defaultdict(list)
    for (figure, number, tree), value in values.items():
        if tree == THIS and values.get((figure, number, OTHER)):
            ratios[figure].append(value / values[figure, number, OTHER])
    return {figure: spread(found) for figure, found in ratios.items()}


def _commit(tree: Path) -> str:
    described = subprocess.run(["git", "describe", "--always"], cwd=tree, capture_output=True, text=True, check=True)
    return described.stdout.strip()


if __name__ == "__main__":
    main()
