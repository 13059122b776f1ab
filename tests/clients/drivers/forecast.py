"""Weather of tomorrow as a pydantic model, for libraries that take one."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict


class Forecast(BaseModel):
    """Weather of tomorrow. Its values are listed: some libraries leave bounds out of the schema that they send."""

    model_config = ConfigDict(extra="forbid")  # the demo model would add properties without end

    city: Literal["Rome", "Oslo"]
    degrees: Literal[17, 18]
