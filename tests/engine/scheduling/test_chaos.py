"""Randomised tests: thousands of small histories on a pool of a few pages, and all of the shortest ones."""

from __future__ import annotations

import itertools
import random

import pytest

from engine.scheduling.policies import POLICIES
from engine.types import PreemptionMode, ServiceClass
from tests.engine.scheduling.history import History
from tests.profiles import examples, nightly

CASES, BLOCKS = examples(10_000), 20


def run_random_history(rng: random.Random) -> None:
    """Run one history of random arrivals, aborts and preemptions, with any policy."""
    batching = rng.choice(["continuous"] * 4 + ["static", "dynamic"])
    slots = rng.randint(1, 4)
    options = {} if batching == "continuous" else {"batch_timeout": rng.choice([0.0, 0.05])}
    broken = rng.random() < 0.4
    history = History(
        slots=slots,
        nan_tokens=range(3, 1000, 45) if broken else (),
        pages=rng.randint(2, 9),
        host=rng.choice([0, 2, 12]),
        swap_speed=rng.choice([1.0, 1e9]),
        row_seconds=rng.choice([0.0, 0.001, 0.01]),
        runs_ahead=rng.random() < 0.5,
        batching=batching,
        scheduling_policy=rng.choice(["carousel", "carousel", *POLICIES]),
        enable_prefix_caching=rng.random() < 0.6,
        prefill_chunk=rng.choice([None, 1, 3]),
        max_num_batched_tokens=slots + rng.randint(1, 8),
        max_wait_standard=rng.choice([0.0, 0.02, 0.5]),
        max_wait_batch=rng.choice([0.0, 0.05, 1.0]),
        max_step_slowdown=rng.choice([1.0, 1.4, float("inf")]),
        min_share=rng.choice([1, 2, 5]),
        **options,
    )
    names: list[str] = []
    trial_share = rng.choice([0.0, 0.1, 0.5, 1.0])
    max_token = 3 if broken else 2  # distinct tokens of a prompt's own part
    for _ in range(rng.randint(3, 14)):
        match rng.choice(["arrive", "arrive", "arrive", "step", "step", "step", "pause", "abort", "wait"]):
            case "arrive":
                shared = rng.randint(0, 9)
                late = rng.random() < 0.1
                names.append(
                    history.arrive(
                        [*range(7, 7 + shared), *(rng.randint(0, max_token) for _ in range(rng.randint(1, 5)))],
                        rng.randint(1, 8),
                        stop=tuple(range(0, 1000, 9)) if rng.random() < 0.3 else (),
                        service_class=rng.choice(list(ServiceClass)),
                        priority=rng.choice([0, 0, 0, -1, 1]),
                        n=rng.choice([1, 1, 1, 1, 2, 3]),
                        tenant=rng.choice(["", "a", "b"]),
                        weight=rng.choice([1.0, 2.0]),
                        deadline=history.now + rng.choice([0.001, 0.1, 1.0]) if late else None,
                        is_trial=rng.random() < trial_share,
                    )
                )
            case "step":
                for _ in range(rng.randint(1, 4)):
                    history.step()
            case "pause" if history.scheduler.running:
                history.pause(rng.randrange(len(history.scheduler.running)), rng.choice(list(PreemptionMode)))
            case "abort" if names:
                history.abort(rng.choice(names))
            case "wait":
                history.now += rng.choice([0.05, 2.0])
    history.end()


@pytest.mark.slow
@pytest.mark.parametrize("block", range(BLOCKS))
def test_thousands_of_histories_keep_every_guarantee(block: int):
    """Integrity holds after each step, and every request finishes with its text. Sequences whose logits are NaN end
    there with an error, and no others do."""
    for case in range(block * CASES // BLOCKS, (block + 1) * CASES // BLOCKS):
        try:
            run_random_history(random.Random(case))
        except Exception as error:
            error.add_note(f"case {case}")
            raise


ACTIONS = ("person", "bulk", "step", "pause", "abort")
DEPTH = 6


@pytest.mark.slow
@pytest.mark.parametrize(
    ("swap_speed", "runs_ahead"),
    [(1.0, True), *(pytest.param(*case, marks=nightly) for case in ((1.0, False), (1e9, False), (1e9, True)))],
)
def test_every_short_history_keeps_every_guarantee(swap_speed: float, runs_ahead: bool):
    """All orders of a few actions on one slot and four pages are tested, not a sample."""
    for actions in itertools.product(ACTIONS, repeat=DEPTH):
        if actions[0] not in ("person", "bulk"):
            continue  # nothing happens before the first arrival
        history = History(slots=1, pages=4, host=4, swap_speed=swap_speed, runs_ahead=runs_ahead)
        name = ""
        try:
            for action in actions:
                match action:
                    case "person":
                        name = history.arrive([1, 2, 3], 2, service_class=ServiceClass.INTERACTIVE)
                    case "bulk":
                        name = history.arrive([1, 2, 3, 4, 5], 4, service_class=ServiceClass.BATCH)
                    case "step":
                        history.step()
                    case "pause" if history.scheduler.running:
                        history.pause(0, PreemptionMode.SWAP if swap_speed > 1 else PreemptionMode.RECOMPUTE)
                    case "abort":
                        history.abort(name)
            history.end()
        except Exception as error:
            error.add_note(f"acts {actions}")
            raise
