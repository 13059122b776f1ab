"""Saves: answers that are being encoded for a store after their end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import TypeVar

Answer = TypeVar("Answer")


class Saves:
    """Unfinished saves with the ids of what they change. Reads of that wait for them."""

    def __init__(self) -> None:
        self._tasks: dict[asyncio.Task[None], frozenset[str]] = {}

    def start(
        self, changed: Iterable[str], encode: Callable[[], Answer], save: Callable[[Answer], None], *, in_thread: bool
    ) -> None:
        """Encode an answer, in a thread if it is long, and save it."""
        if not in_thread:
            save(encode())
            return

        async def run() -> None:
            save(await asyncio.to_thread(encode))

        task = asyncio.get_running_loop().create_task(run())
        self._tasks[task] = frozenset(changed)
        task.add_done_callback(self._tasks.pop)

    async def settled(self, changed: str) -> None:
        """Wait until no unfinished save changes the record with this id."""
        if tasks := [task for task, ids in self._tasks.items() if changed in ids]:
            await asyncio.wait(tasks)
