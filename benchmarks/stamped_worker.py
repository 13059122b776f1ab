"""An engine process that notes when it hands each token over. Part of token_latency.py.

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
from engine.frames import EngineChannel, Stepped
from engine.types import TokenEvent


class StampedChannel(EngineChannel):
    """Remembers, for each request, when its tokens were sent."""

    stamps: ClassVar[dict[str, list[float]]] = {}

    def send(self, message: msgspec.Struct) -> None:  # type: ignore[override]
        """As the channel does, and the moment before it; remembered afterwards, so that nobody waits for that."""
        now = time.perf_counter()
        super().send(message)  # type: ignore[arg-type]
        if isinstance(message, Stepped):
            for event in message.events:
                if isinstance(event, TokenEvent):
                    self.stamps.setdefault(event.request_id, []).append(now)


def main() -> None:
    """Serve as the engine does; write the stamps when the channel closes."""
    file = Path(sys.argv.pop())
    worker.EngineChannel = StampedChannel  # type: ignore[misc]
    try:
        worker.main()
    finally:
        file.write_text(json.dumps(StampedChannel.stamps))


if __name__ == "__main__":
    main()
