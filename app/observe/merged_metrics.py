"""Metrics of several API processes in one text: each sample has the number of its process as a label. Pure."""

from __future__ import annotations

from collections.abc import Mapping

LABEL = "api_process"


def merge_metrics(texts: Mapping[int, str]) -> str:
    """Return one text in Prometheus' format of the texts of several processes, by their numbers."""
    heads: dict[str, list[str]] = {}  # comments of each family, in order
    samples: dict[str, list[str]] = {}
    for number, text in sorted(texts.items()):
        family = ""
        for line in text.splitlines():
            if line.startswith("# "):
                family = line.split(" ", 3)[2]
                known = heads.setdefault(family, [])
                if line not in known:
                    known.append(line)
            elif line:
                samples.setdefault(family, []).append(_labelled(line, number))
    return "".join(f"{line}\n" for family, comments in heads.items() for line in (*comments, *samples.get(family, ())))


def _labelled(sample: str, number: int) -> str:
    """Return a sample with the label of its process."""
    name, brace, rest = sample.partition("{")
    label = f'{LABEL}="{number}"'
    if brace:
        return f"{name}{{{label}{'' if rest.startswith('}') else ','}{rest}"
    name, _, value = sample.partition(" ")
    return f"{name}{{{label}}} {value}"
