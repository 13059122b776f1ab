"""Progress of a model that is loading, on a terminal, and the line about a loaded one."""

from __future__ import annotations

import shutil
import sys
from types import TracebackType
from typing import Self, TextIO, cast

from tqdm import tqdm

from engine.log_queue import LogHandler, LogWriter
from engine.types import ModelInfo

LONG_STAGES = ("kernels", "weights", "checksums", "graphs")  # stages of a start that get a progress bar


class LoadingBar:
    """Progress bar of the current stage, if standard error is a terminal."""

    def __init__(self, logs: LogHandler) -> None:
        self._stage = LONG_STAGES[1]
        self._bar = tqdm(
            desc=self._stage,
            unit_scale=True,
            leave=False,
            delay=0.5,
            disable=logs.is_json or not sys.stderr.isatty(),
            file=cast(TextIO, _Screen(logs.writer)),
            ncols=shutil.get_terminal_size().columns,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._bar.close()

    def show(self, stage: str, done: int, total: int) -> None:
        """Show the progress of a stage, if it is a long one."""
        if stage not in LONG_STAGES:
            return
        if stage != self._stage:
            self._stage = stage
            self._bar.set_description(stage)
            self._bar.reset()
        self._bar.total = total
        self._bar.update(done - self._bar.n)


class _Screen:
    """Terminal as a file for a progress bar. A write never blocks the event loop."""

    def __init__(self, writer: LogWriter) -> None:
        self.write = writer.write_text

    def flush(self) -> None:
        """Do nothing: a thread writes the queued text."""


def describe(info: ModelInfo) -> str:
    """Return the sizes of a loaded model for the operator."""
    tokens = info.num_pages * info.page_size
    return (
        f"{info.parameters / 1e6:.1f}M parameters in {info.storage} on {info.device}, "
        f"{info.max_num_seqs} slots, KV for {tokens:,} tokens, context {info.max_model_len:,}"
    )
