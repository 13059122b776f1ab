"""Changes of running requests by their clients: pause, resume, another service tier. Engines do the same
(`engine.scheduling.changes`); here are the limits, the counts, the journal and the latency of a changed request.
"""

from __future__ import annotations

import msgspec

from app.admission.request_counts import PauseLimits
from app.admission.tenants import Tenant
from app.errors import ApiError
from app.generation.generation import Generation
from app.service import Service
from engine.types import ServiceClass

MAX_CHANGES = 1000  # of one request: each adds to its timeline


async def change_request(
    service: Service, generation: Generation, tenant: Tenant, is_paused: bool | None, service_class: ServiceClass | None
) -> None:
    """Pause or resume a tenant's request, and move it to a class. None: as before; the same state changes nothing.

    Raises `ApiError` for a request that has ended (409), a class that the tenant may not use (403), too many changes
    of this one (429), and too many paused requests or a full queue to which this one would return or move (429, 503).
    """
    before = generation.request
    if generation.log.is_closed:
        raise ApiError(409, f"request {generation.log.id!r} has ended", param="request_id", code="request_ended")
    after = msgspec.structs.replace(
        before,
        is_paused=before.is_paused if is_paused is None else is_paused,
        service_class=before.service_class if service_class is None else service_class,
    )
    if after.service_class is not before.service_class:
        service.check_tier(tenant, after.service_class)
    if (after.is_paused, after.service_class) == (before.is_paused, before.service_class):
        return
    if generation.changes >= MAX_CHANGES and (after.is_paused or after.service_class is not before.service_class):
        message = f"request {generation.log.id!r} has been changed {MAX_CHANGES:,} times; it can only be resumed"
        raise ApiError(429, message, param="request_id", code="too_many_changes")
    has_started = generation.timing.started is not None
    settings = service.settings
    limits = PauseLimits(settings.max_paused, settings.max_queue, settings.max_queue_tokens)
    slots, taken = max(1, service.client.slots), service.client.uses.slots_taken
    service.counts.check_change(tenant, before, after, limits, slots, taken, has_started=has_started)
    service.counts.change(before, after, has_started=has_started)
    token_batch = service.metrics.token_batch(after.service_class, service.metrics.name_of(after.tenant))
    generation.change(after, token_batch.add_token, service.settings.max_pause)
    service.client.change(after.id, is_paused=after.is_paused, service_class=after.service_class)
    if service.state_file is not None:
        service.state_file.journal.change(after)
        await service.state_file.journal.settle()  # no client gets an answer that a restart does not know
