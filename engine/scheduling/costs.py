"""What the machine charges for what the scheduler decides."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Costs:
    """As measured at start, or assumed where nothing could be measured."""

    swap_pages_per_second: float  # one way
    prefill_tokens_per_second: float
    decode_seconds: float = 0.0  # of a step in which one sequence decodes, the shortest there is
    row_seconds: float = 0.0  # that each further one adds; next to nothing where weights are what a step waits for
    recorded_tokens: int = 0  # of rows and prompts together, up to which a step is one launch; 0: none is

    def swap_seconds(self, pages: int) -> float:
        """Until `pages` are in host memory and back."""
        return 2 * pages / self.swap_pages_per_second

    def prefill_seconds(self, tokens: int) -> float:
        """Until `tokens` have gone through the model."""
        return tokens / self.prefill_tokens_per_second
