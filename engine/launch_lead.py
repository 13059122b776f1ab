"""Lead time: how long before the end of a step the next one is scheduled, if a device computes on its own.

A request that arrives after a step was scheduled waits for all of it; a step that is scheduled too late leaves the
device idle. The lead is therefore only as long as needed to keep the device busy. It grows by half after the device was
idle and shrinks by a hundredth otherwise, so about one step in forty is scheduled slightly too late. (Multiplicative
increase and decrease: the equilibrium depends on the frequency only, not on a model of the host's work.)

The lead covers the host's time for scheduling and launching, late wake-ups, and errors in the estimated step time. A
lead as long as the step cannot help more: if the host is slower than the device, steps are scheduled at once, and the
growth during that time is soon undone. This module reads no clock.
"""

from __future__ import annotations

GROWTH_FACTOR, SHRINK_FACTOR = 1.5, 0.99
MIN_LEAD_SECONDS = 1e-4
INITIAL_LEAD_SECONDS = 0.02  # longer than most steps, which are therefore scheduled at once until more is known


class LaunchLead:
    """Lead times in seconds, one for recorded steps and one for others.

    Steps launched operation by operation take longer to launch and are harder to estimate.
    """

    def __init__(self) -> None:
        self._seconds = {True: INITIAL_LEAD_SECONDS, False: INITIAL_LEAD_SECONDS}

    def seconds(self, *, is_recorded: bool) -> float:
        """Return the lead before the estimated end of such a step."""
        return self._seconds[is_recorded]

    def observe(self, *, is_recorded: bool, estimated: float, device_was_idle: bool) -> None:
        """Adapt the lead after a launch.

        `device_was_idle`: the device had completed the previous step, of this kind and estimated at `estimated`
        seconds.
        """
        seconds = self._seconds[is_recorded]
        grown = min(GROWTH_FACTOR * seconds, max(seconds, estimated)) if device_was_idle else SHRINK_FACTOR * seconds
        self._seconds[is_recorded] = max(grown, MIN_LEAD_SECONDS)
