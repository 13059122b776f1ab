"""Body of POST /v1/requests/{id}, which changes a request that has not ended."""

from __future__ import annotations

from typing import Literal

from app.admission.tenants import TIERS
from app.errors import ApiError
from app.protocols.schema import Strict
from engine.types import ServiceClass


class RequestChange(Strict):
    """New state of a request; a field that is left out changes nothing."""

    state: Literal["paused", "running"] | None = None
    service_tier: Literal["priority", "default", "flex"] | None = None

    def check(self) -> None:
        """Raise `ApiError` if there is nothing to change."""
        if self.state is None and self.service_tier is None:
            raise ApiError(400, "state or service_tier must be given", param="state", code="invalid_value")

    @property
    def is_paused(self) -> bool | None:
        """Return whether the request is paused from now on; None: as before."""
        return None if self.state is None else self.state == "paused"

    @property
    def service_class(self) -> ServiceClass | None:
        """Return the class of the request from now on; None: as before."""
        return None if self.service_tier is None else TIERS[self.service_tier]
