"""CpuShares: CPU time that the work of tenants may use."""

from __future__ import annotations

from collections import OrderedDict

from app.admission.cell_rate import CellRate

TOLERANCE_SECONDS = 0.05  # CPU time that a tenant may use ahead of its share
TOTAL_TOLERANCE_SECONDS = 1.0  # and all together: more than one function of a single tenant takes
TENANTS_AT_ONCE = 2  # tenants that use their whole shares at once; further ones divide these between them
MAX_TENANTS = 1024  # whose use is remembered


class CpuShares:
    """CPU time of each tenant, and of all together.

    The sum is larger than the share of one tenant, so that one that uses up its own share delays no other.
    """

    def __init__(self, share: float) -> None:
        """share: of a core, for one tenant; may be infinite."""
        self._share = share
        self._all = CellRate(TENANTS_AT_ONCE * share, TOTAL_TOLERANCE_SECONDS)
        self._tenants: OrderedDict[str, CellRate] = OrderedDict()  # the least recently active first

    def wait(self, tenant: str, now: float) -> float:
        """Return the seconds until work of a tenant may start."""
        own = self._tenants.get(tenant)
        return max(self._all.wait(now), own.wait(now) if own is not None else 0.0)

    def total_wait(self, now: float) -> float:
        """Return the seconds until work of any tenant may start."""
        return self._all.wait(now)

    def spend(self, tenant: str, now: float, cpu_seconds: float) -> None:
        """Count CPU time that was used for a tenant."""
        self._all.spend(now, cpu_seconds)
        self._tenants.setdefault(tenant, CellRate(self._share, TOLERANCE_SECONDS)).spend(now, cpu_seconds)
        self._tenants.move_to_end(tenant)
        if len(self._tenants) > MAX_TENANTS:
            self._tenants.popitem(last=False)
