"""Engine that computes nothing: it listens like `carousel engine`, and every row gets a token in each step of a fixed
time. Part of api_members.py; its model is the demo model by name and vocabulary.

python -m benchmarks.paced_engine HOST:PORT TOKEN_FILE SLOTS STEP_SECONDS
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from engine.config import EngineConfig
from engine.engine import Engine
from engine.heartbeat import Heartbeat
from engine.log_queue import start_logging
from engine.network import Address, bind, read_token
from engine.scheduling.batch import Batch, Sampled, StepOutcome
from engine.scheduling.costs import Costs
from engine.scheduling.policies import make_policy
from engine.scheduling.scheduler import Scheduler
from engine.server import EngineServer, ServerOptions
from engine.types import ModelInfo

MAX_MODEL_LEN, VOCABULARY = 2048, 4096  # of the demo model
FIRST_TOKEN, TOKENS = 300, 200  # ordinary tokens of the demo model, of more than one byte
MIN_LEFT_SECONDS = 1e-4  # of a step, below which it is over


class PacedRunner:
    """Runner whose steps end on time, with tokens that follow each other."""

    runs_ahead = False
    device_was_idle = True

    def __init__(self, step_seconds: float) -> None:
        self._step_seconds = step_seconds
        self._ends_at = 0.0
        self._steps = 0

    @property
    def max_draft_rows(self) -> int:
        """Return 0: every token is sampled alone."""
        return 0

    def swapped_out(self) -> Callable[[], None]:
        """Return a function that does nothing: pages are moved at once."""
        return lambda: None

    def prefault_pages(self, pages: int) -> bool:
        """Return False: there is no memory to prefault."""
        return False

    def launch(self, batch: Batch) -> Callable[[], StepOutcome]:
        """Wait until the step's time is over."""
        now = time.monotonic()
        self._ends_at = max(self._ends_at + self._step_seconds, now)
        if (left := self._ends_at - now) > MIN_LEFT_SECONDS:
            time.sleep(left)
        self._steps += 1
        token = Sampled(FIRST_TOKEN + self._steps % TOKENS)
        sampled = len(batch.decodes) + sum(chunk.samples for chunk in batch.chunks)
        return lambda: StepOutcome((token,) * sampled)


def build(step_seconds: float, config: EngineConfig, progress: Callable[[str, int, int], None]) -> Engine:
    """Return an engine with pages for all rows."""
    pages = config.max_num_seqs * MAX_MODEL_LEN // config.tokens_per_page
    costs = Costs(swap_pages_per_second=1e9, prefill_tokens_per_second=1e7, decode_seconds=step_seconds)
    scheduler = Scheduler(config, make_policy(config, costs), num_pages=pages, host_pages=0, max_len=MAX_MODEL_LEN)
    info = ModelInfo(
        name="paced", vocab_size=VOCABULARY, max_model_len=MAX_MODEL_LEN, num_pages=pages,
        page_size=config.tokens_per_page, max_num_seqs=config.max_num_seqs, device="none", dtype="none", parameters=0,
    )  # fmt: skip
    return Engine(config, info, scheduler, PacedRunner(step_seconds), time.monotonic)


def main() -> None:
    """Serve until a signal."""
    _, address, token_file, slots, seconds = sys.argv
    logs = start_logging("warning", "text")
    config = EngineConfig(model="paced", max_num_seqs=int(slots), enable_prefix_caching=False).validate()
    options = ServerOptions(
        sock=bind(Address.parse(address, "address")), token=read_token(Path(token_file)), tls=None, orphan_grace=0.0,
        drain_seconds=0.0,
    )  # fmt: skip
    server = EngineServer(config, options, lambda *_: None, partial(build, float(seconds)), Heartbeat())
    logs.write_plain(f"ready on {server.address}")
    server.serve()


if __name__ == "__main__":
    main()
