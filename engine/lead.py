"""How long before the end of a step the next one is decided, where a device computes by itself.

Whoever arrives after a step was decided waits for all of it; the device waits for whoever decides too late. So the lead
is what keeps the device from running dry, and no more: it grows by half when that happened, shrinks by a hundredth when
it did not, and so one step in forty is decided too late, by little. (Multiplicative increase and decrease: where it
settles depends on how often, and on no model of what the host does.) It covers the host's time for deciding and
launching, how late a sleeper wakes, and what was foreseen wrongly of the step under way. As long as that step it helps
all it can: where the host is slower than the device, steps are decided at once, and what the lead has grown to then is
soon forgotten. Knows no clock.
"""

from __future__ import annotations

GROW, SHRINK = 1.5, 0.99
LEAST = 1e-4  # seconds
FIRST = 0.02  # longer than most steps, which are decided as soon as they can be until more is known


class Lead:
    """Seconds; of recorded steps others than of those that are launched operation by operation, which takes long and is
    foreseen less well."""

    def __init__(self) -> None:
        self._seconds = {True: FIRST, False: FIRST}

    def seconds(self, *, is_recorded: bool) -> float:
        """Before the foreseen end of such a step."""
        return self._seconds[is_recorded]

    def observe(self, *, is_recorded: bool, foreseen: float, ran_dry: bool) -> None:
        """Whether the device was done with such a step, of `foreseen` seconds, by the time the next was launched."""
        seconds = self._seconds[is_recorded]
        grown = min(GROW * seconds, max(seconds, foreseen)) if ran_dry else SHRINK * seconds
        self._seconds[is_recorded] = max(grown, LEAST)
