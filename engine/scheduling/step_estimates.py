"""StepEstimates: durations of steps and sequences, estimated from their contents and learnt from earlier steps."""

from __future__ import annotations

from engine.prompt_pace import PromptPace
from engine.scheduling.batch import Batch
from engine.scheduling.kv_manager import KVManager
from engine.scheduling.policy import Policy
from engine.scheduling.sequence import Sequence, State


class StepEstimates:
    """Durations of batches and sequences, by the policy's model of the time of rows and prompt tokens."""

    def __init__(self, policy: Policy, kv_manager: KVManager) -> None:
        self._policy = policy
        self._kv_manager = kv_manager

    def seconds(self, batch: Batch) -> float:
        """Return the estimated seconds of a step, without page moves."""
        model, drafts = self._policy.step_time_model, batch.num_drafts
        seconds = model.seconds(batch.num_decoding, self._prompt_work(batch))
        return seconds + drafts * model.with_drafts(batch.num_decoding)[1] if drafts else seconds

    def is_recorded(self, batch: Batch) -> bool:
        """Return whether `batch` is a recorded launch, on an engine that records steps."""
        return not batch.chunks or batch.num_tokens <= self._policy.costs.recorded_tokens

    def observe(self, batch: Batch, seconds: float) -> None:
        """Learn from the duration of a step."""
        if not (batch.swap_in or batch.swap_out or batch.copies):
            work, drafts = self._prompt_work(batch), batch.num_drafts
            self._policy.step_time_model.observe(batch.num_decoding, work, seconds, drafts)

    def min_seconds_left(self, sequence: Sequence) -> float:
        """Return `StepTimeModel.min_seconds_left`, given the current contents of the prefix cache."""
        cached = 0
        if sequence.prompt_leader is not None:
            cached = sequence.prompt_len
        elif sequence.state in (State.WAITING, State.SUSPENDED):
            cached = self._kv_manager.cached_tokens(sequence)
        return self._policy.step_time_model.min_seconds_left(sequence, cached)

    def seconds_saved(self, start: int, tokens: int) -> float:
        """Return the seconds in which `tokens` of a prompt from `start` on are computed, beyond those for copying them
        from host memory.
        """
        model, pages = self._policy.step_time_model, tokens // self._policy.config.tokens_per_page
        return model.prompt_seconds(model.work(start, tokens)) - self._policy.costs.copy_seconds(pages)

    def prompt_pace(self, rows: int) -> PromptPace:
        """Return the costs of steps with prompts beside `rows` decode rows."""
        return self._policy.step_time_model.prompt_pace(rows, max(1, self._policy.prompt_tokens(rows)))

    def _prompt_work(self, batch: Batch) -> float:
        work = self._policy.step_time_model.work
        return sum([work(chunk.start, chunk.length) for chunk in batch.chunks if chunk.samples <= 1])
