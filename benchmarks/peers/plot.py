"""Plot of tokens per second by streams, with a line for each peer and the bound."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")  # no display is needed

from matplotlib import pyplot as plt

STYLES = {
    "carousel": ("#b3261e", "o"),
    "vllm": ("#1f5fa8", "s"),
    "llama-server": ("#2e7d4f", "^"),
    "transformers serve": ("#8a6d1f", "D"),
    "transformers generate": ("#7a7a7a", "v"),
    "bound": ("#000000", ""),
}
LABELS = {"bound": "linear layers alone", "transformers generate": "transformers generate (static, no HTTP)"}


def draw(summary: dict[str, Any], model: str, path: Path) -> Path:
    """Write the plot: medians, with the range as error bars."""
    counts = [int(streams) for streams in summary]
    figure, axes = plt.subplots(figsize=(7.5, 4.5))
    for name, (colour, marker) in STYLES.items():
        points = [(int(streams), peers[name]["tokens_per_s"]) for streams, peers in summary.items() if name in peers]
        if not points:
            continue
        at, medians = [streams for streams, _ in points], [speed["median"] for _, speed in points]
        below = [speed["median"] - speed["min"] for _, speed in points]
        above = [speed["max"] - speed["median"] for _, speed in points]
        line = "--" if name == "bound" else "-"
        axes.errorbar(
            at,
            medians,
            yerr=[below, above],
            color=colour,
            marker=marker,
            linestyle=line,
            linewidth=2.2 if name == "carousel" else 1.4,
            elinewidth=0.8,
            markersize=5,
            label=LABELS.get(name, name),
        )
    axes.set_xscale("log", base=2)
    axes.set_xticks(counts, [str(count) for count in counts])
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    axes.set_xlabel("concurrent streams")
    axes.set_ylabel("output tokens per second")
    axes.set_title(f"{model}, random weights, bfloat16 checkpoint, CPU", fontsize=10)
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=9)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)
    return path
