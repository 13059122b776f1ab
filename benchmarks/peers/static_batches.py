"""transformers `generate` in static batches, without HTTP. Runs as a standalone script in transformers' environment:

    python static_batches.py MODEL_FOLDER      # then {"prompts": [[...], ...], "steps": 96} on standard input

All prompts form one batch, which runs until the longest answer ends.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import torch
from transformers import AutoModelForCausalLM
from transformers.generation.streamers import BaseStreamer


class Moments(BaseStreamer):  # type: ignore[misc]
    """Streamer that records the end time of each step of a batch. `generate` passes it the prompts first."""

    def __init__(self) -> None:
        self.seen: list[float] = []

    def put(self, value: Any) -> None:
        """Record the time of one step's tokens."""
        self.seen.append(time.perf_counter())

    def end(self) -> None:
        """Do nothing."""


def main(folder: str) -> None:
    """Load the model, then generate a batch for each input line."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        job = json.loads(line)
        prompts, moments = torch.tensor(job["prompts"]), Moments()
        began = time.perf_counter()
        out = model.generate(
            prompts,
            attention_mask=torch.ones_like(prompts),
            max_new_tokens=job["steps"],
            do_sample=False,
            streamer=moments,
        )
        tokens = out[:, prompts.shape[1] :].tolist()
        seen = [moment - began for moment in moments.seen[1:]]
        print(json.dumps({"tokens": tokens, "moments": seen}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
