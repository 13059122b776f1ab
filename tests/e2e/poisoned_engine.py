"""The `carousel` command with an engine that is killed when it begins to compute a request with the seed `POISON_SEED`.

Started by `test_trials` as a process of its own; takes the arguments of the command.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable

from app.__main__ import main
from engine.execution.runner import ModelRunner
from engine.scheduling.batch import Batch, StepOutcome

POISON_SEED = 666

launch = ModelRunner.launch
seeds: dict[int, int] = {}  # of the request in each slot


def launch_or_die(runner: ModelRunner, batch: Batch) -> Callable[[], StepOutcome]:
    seeds.update({join.slot: join.sampling.seed for join in batch.joins})
    if any(seeds[slot] == POISON_SEED for slot in (*batch.decodes, *(chunk.slot for chunk in batch.chunks))):
        os.kill(os.getpid(), signal.SIGKILL)
    return launch(runner, batch)


if __name__ == "__main__":
    ModelRunner.launch = launch_or_die  # type: ignore[method-assign]
    sys.exit(main())
