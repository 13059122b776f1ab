"""Forced chaos: thousands of small histories on a pool of a few pages, and every one of the smallest."""

from __future__ import annotations

import itertools
import random

import pytest

from engine.scheduling.policies import POLICIES
from engine.types import Mechanism, ServiceClass
from tests.engine.scheduling.history import History

CASES, BLOCKS = 10_000, 20


def chaos(dice: random.Random) -> None:
    """One history: random arrivals, aborts and pauses, whatever the policy."""
    batching = dice.choice(["continuous"] * 4 + ["static", "dynamic"])
    slots = dice.randint(1, 4)
    options = {} if batching == "continuous" else {"batch_timeout": dice.choice([0.0, 0.05])}
    broken = dice.random() < 0.4
    history = History(
        slots=slots,
        nan_tokens=range(3, 1000, 45) if broken else (),
        pages=dice.randint(2, 9),
        host=dice.choice([0, 2, 12]),
        swap_speed=dice.choice([1.0, 1e9]),
        row_seconds=dice.choice([0.0, 0.001, 0.01]),
        runs_ahead=dice.random() < 0.5,
        batching=batching,
        scheduling_policy=dice.choice(["carousel", "carousel", *POLICIES]),
        enable_prefix_caching=dice.random() < 0.6,
        prefill_chunk=dice.choice([None, 1, 3]),
        max_num_batched_tokens=slots + dice.randint(1, 8),
        max_wait_standard=dice.choice([0.0, 0.02, 0.5]),
        max_wait_batch=dice.choice([0.0, 0.05, 1.0]),
        stretch=dice.choice([1.0, 1.4, float("inf")]),
        min_share=dice.choice([1, 2, 5]),
        **options,
    )
    names: list[str] = []
    most = 3 if broken else 2  # of a prompt's own tokens
    for _ in range(dice.randint(3, 14)):
        match dice.choice(["arrive", "arrive", "arrive", "step", "step", "step", "pause", "abort", "wait"]):
            case "arrive":
                shared = dice.randint(0, 9)
                late = dice.random() < 0.1
                names.append(
                    history.arrive(
                        [*range(7, 7 + shared), *(dice.randint(0, most) for _ in range(dice.randint(1, 5)))],
                        dice.randint(1, 8),
                        stop=tuple(range(0, 1000, 9)) if dice.random() < 0.3 else (),
                        service_class=dice.choice(list(ServiceClass)),
                        priority=dice.choice([0, 0, 0, -1, 1]),
                        n=dice.choice([1, 1, 1, 1, 2, 3]),
                        tenant=dice.choice(["", "a", "b"]),
                        weight=dice.choice([1.0, 2.0]),
                        deadline=history.now + dice.choice([0.001, 0.1, 1.0]) if late else None,
                    )
                )
            case "step":
                for _ in range(dice.randint(1, 4)):
                    history.step()
            case "pause" if history.scheduler.running:
                history.pause(dice.randrange(len(history.scheduler.running)), dice.choice(list(Mechanism)))
            case "abort" if names:
                history.abort(dice.choice(names))
            case "wait":
                history.now += dice.choice([0.05, 2.0])
    history.end()


@pytest.mark.slow
@pytest.mark.parametrize("block", range(BLOCKS))
def test_ten_thousand_histories_keep_every_promise(block: int):
    """Books balance after each step, everybody finishes, and every text is the text alone: where the model has no
    numbers for some, theirs end there with an error, and nobody else's."""
    for case in range(block * CASES // BLOCKS, (block + 1) * CASES // BLOCKS):
        try:
            chaos(random.Random(case))
        except Exception as error:
            error.add_note(f"case {case}")
            raise


ACTS = ("person", "bulk", "step", "pause", "abort")
DEPTH = 6


@pytest.mark.slow
@pytest.mark.parametrize("runs_ahead", [False, True])
@pytest.mark.parametrize("swap_speed", [1.0, 1e9])
def test_every_short_history_keeps_every_promise(swap_speed: float, runs_ahead: bool):
    """All orders of a few acts on one slot and four pages, not a sample of them."""
    for acts in itertools.product(ACTS, repeat=DEPTH):
        if acts[0] not in ("person", "bulk"):
            continue  # nothing happens before somebody comes
        history = History(slots=1, pages=4, host=4, swap_speed=swap_speed, runs_ahead=runs_ahead)
        name = ""
        try:
            for act in acts:
                match act:
                    case "person":
                        name = history.arrive([1, 2, 3], 2, service_class=ServiceClass.INTERACTIVE)
                    case "bulk":
                        name = history.arrive([1, 2, 3, 4, 5], 4, service_class=ServiceClass.BATCH)
                    case "step":
                        history.step()
                    case "pause" if history.scheduler.running:
                        history.pause(0, Mechanism.SWAP if swap_speed > 1 else Mechanism.RECOMPUTE)
                    case "abort":
                        history.abort(name)
            history.end()
        except Exception as error:
            error.add_note(f"acts {acts}")
            raise
