"""Machine costs that scheduling decisions are based on."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Costs:
    """Costs as measured at startup, or assumed where no measurement is possible."""

    swap_pages_per_second: float  # one way
    prefill_tokens_per_second: float
    decode_seconds: float = 0.0  # duration of a step that decodes one sequence, the shortest possible step
    row_seconds: float = 0.0  # added by each further row; near 0 where a step is bound by reading weights
    attention_ratio: float = 0.0  # time to attend to one earlier position, of the rest of a prompt token's time
    recorded_tokens: int = 0  # rows plus prompt tokens, up to which a step is one recorded launch; 0: no step is

    def swap_seconds(self, pages: int) -> float:
        """Return the seconds needed to move `pages` to host memory and back."""
        return 2 * self.copy_seconds(pages)

    def copy_seconds(self, pages: int) -> float:
        """Return the seconds needed to copy `pages` from host memory."""
        return pages / self.swap_pages_per_second

    def prefill_seconds(self, tokens: int) -> float:
        """Return the seconds needed to put `tokens` through the model."""
        return tokens / self.prefill_tokens_per_second
