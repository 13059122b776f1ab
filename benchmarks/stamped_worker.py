"""Engine process that records when it sends each token. Part of token_latency.py.

python -m benchmarks.stamped_worker FD FILE
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import ClassVar

import msgspec

from engine import worker
from engine.connection import Connection
from engine.ipc import StepResult
from engine.types import TokenEvent


class StampedConnection(Connection):
    """Connection that records, for each request, when its tokens were sent."""

    stamps: ClassVar[dict[str, list[float]]] = {}

    def send(self, message: msgspec.Struct) -> None:  # type: ignore[override]
        """Send a message, taking the time before and recording it afterwards, so that recording delays no token."""
        now = time.perf_counter()
        super().send(message)  # type: ignore[arg-type]
        if isinstance(message, StepResult):
            for event in message.events:
                if isinstance(event, TokenEvent):
                    self.stamps.setdefault(event.request_id, []).append(now)


def main() -> None:
    """Run the engine's worker, and write the timestamps when the connection closes."""
    file = Path(sys.argv.pop())
    worker.Connection = StampedConnection  # type: ignore[misc]
    try:
        worker.main()
    finally:
        file.write_text(json.dumps(StampedConnection.stamps))


if __name__ == "__main__":
    main()
