"""Tables of rate limits and of refused keys, so that a restart neither refills a limit nor ends a delay."""

from app.admission.rate_limits import MAX_IDLE_TENANTS, RESTORED_SECONDS
from app.admission.refused_keys import FORGET_SECONDS, MAX_NETWORKS
from app.store.coalesced_table import Table

RATES = Table("rate", ("requests", "tokens"), RESTORED_SECONDS, MAX_IDLE_TENANTS)
REFUSED_KEYS = Table("refused_key", ("attempts",), FORGET_SECONDS, MAX_NETWORKS)
