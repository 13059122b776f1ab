"""PromptBatch: several prompts of one request, each with a generation of its own, as one answer."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from app.generation.generation import Generation
from app.streams.stream_log import (
    ChoiceFinished,
    ChoiceStarted,
    Delta,
    Encoder,
    Failure,
    LogEntry,
    PromptInfos,
    Reader,
    Record,
    StreamLog,
    Usage,
)


class PromptBatch:
    """Writer of one log with the records of all parts; choice c of prompt p becomes choice p * n + c.

    The first part that fails ends the others. Has the id of its first part, under which that part's timeline is found.
    """

    def __init__(self, parts: Sequence[Generation], encoder: Encoder) -> None:
        """parts: at least one generation, all with the same number of choices."""
        first = parts[0]
        self.encoder: Encoder | None = encoder
        self.log = StreamLog(first.log.id, first.log.epoch, first.log.owner)
        self._parts = parts
        self._usages: list[Usage] = []
        self._readers = [Reader(part.log, 0) for part in parts]
        self._has_left = False
        for index, (part, reader) in enumerate(zip(parts, self._readers, strict=True)):
            reader.__enter__()
            part.log.follow(partial(self._copy, index))
        for index in range(len(parts)):
            self._copy(index)

    @property
    def num_choices(self) -> int:
        """Return the number of choices of all prompts together."""
        return sum(part.num_choices for part in self._parts)

    def on_reader_left(self) -> None:
        """Handle the departure of a reader: without one, the parts have none either."""
        if not self.log.readers and not self._has_left:
            self._has_left = True
            for part, reader in zip(self._parts, self._readers, strict=True):
                reader.__exit__()
                part.on_reader_left()

    def _copy(self, index: int) -> None:
        """Append the new records of a part."""
        if self.log.is_closed:
            return
        for item in self._readers[index].read():
            if isinstance(item, LogEntry):
                self._append(item.record, index * self._parts[index].num_choices)
        self.log.notify()

    def _append(self, record: Record, first_choice: int) -> None:
        match record:
            case ChoiceStarted(choice):
                self.log.append(ChoiceStarted(first_choice + choice))
            case PromptInfos(choice, infos):
                self.log.append(PromptInfos(first_choice + choice, infos))
            case Delta(choice, text, tokens, infos, reasoning, calls):
                self.log.append(Delta(first_choice + choice, text, tokens, infos, reasoning, calls))
            case ChoiceFinished(choice, reason, stop):
                self.log.append(ChoiceFinished(first_choice + choice, reason, stop))
            case Failure():
                self.log.append(record)
                for part in self._parts:
                    part.cancel()
            case Usage():
                self._usages.append(record)
                if len(self._usages) == len(self._parts):
                    self.log.append(self._total())

    def _total(self) -> Usage:
        """Return the tokens of all parts, with the times of the one that took longest."""
        slowest = max(self._usages, key=lambda usage: sum(usage.time_ms.values()))
        return Usage(
            sum(usage.prompt_tokens for usage in self._usages),
            sum(usage.completion_tokens for usage in self._usages),
            sum(usage.cached_tokens for usage in self._usages),
            slowest.time_ms,
            sum(usage.reasoning_tokens for usage in self._usages),
        )
