"""instructor in its modes for OpenAI's protocols."""

from __future__ import annotations

import common
import instructor
from forecast import Forecast
from openai import OpenAI

MODES = (
    instructor.Mode.TOOLS,
    instructor.Mode.JSON_SCHEMA,
    instructor.Mode.RESPONSES_TOOLS,
)


def ask(mode: instructor.Mode, **fields: object) -> Forecast:
    """Return a forecast, without retries."""
    client = instructor.from_openai(OpenAI(base_url=f"{common.URL}/v1", api_key="none", max_retries=0), mode=mode)
    request = {"model": common.MODEL, "messages": [{"role": "user", "content": common.QUESTION}], **fields}
    return client.chat.completions.create(response_model=Forecast, max_retries=0, **request)


def structured() -> None:
    for mode in MODES:
        assert isinstance(ask(mode, temperature=0), Forecast)


def errors() -> None:
    common.check_error(lambda: ask(MODES[0], model=common.UNKNOWN_MODEL), common.UNKNOWN_MODEL)
    common.check_error(lambda: ask(MODES[0], temperature=9), "temperature")


common.run_features(structured, errors)
