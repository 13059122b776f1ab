"""instructor in its modes for OpenAI's protocols; its default mode is that of tools."""

from __future__ import annotations

import os
from collections.abc import Iterable

import common
import everyday
import instructor
from forecast import Forecast
from openai import OpenAI
from pydantic import BaseModel, ValidationInfo, field_validator

os.environ |= {"OPENAI_BASE_URL": f"{common.URL}/v1", "OPENAI_API_KEY": "none"}
MODES = (
    instructor.Mode.TOOLS,
    instructor.Mode.JSON,
    instructor.Mode.JSON_SCHEMA,
    instructor.Mode.RESPONSES_TOOLS,
)
WRITTEN = (instructor.Mode.JSON, instructor.Mode.JSON_SCHEMA)
QUESTION = [{"role": "user", "content": common.QUESTION}]


def client(*mode: instructor.Mode, url: str = common.URL) -> instructor.Instructor:
    """Return a client in a mode, or in the default one."""
    return instructor.from_openai(OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0), *mode)


def ask(mode: Iterable[instructor.Mode] = (), **fields: object) -> Forecast:
    """Return a forecast, without retries."""
    request = {"model": common.MODEL, "messages": QUESTION, "max_retries": 0} | fields
    return client(*mode).chat.completions.create(response_model=Forecast, **request)


class RefusedOnce(Forecast):
    """A forecast whose first value is invalid, so that the library asks again with the error."""

    @field_validator("city")
    @classmethod
    def refuse_first(cls, value: str, info: ValidationInfo) -> str:
        info.context["values"].append(value)
        if len(info.context["values"]) == 1:
            raise ValueError("the first city is always wrong")
        return value


def turns() -> None:
    for mode in ([], *([mode] for mode in MODES if mode is not instructor.Mode.JSON)):
        context = {"values": []}
        request = {"model": common.MODEL, "messages": QUESTION, "context": context, "max_retries": 1}
        answer = client(*mode).chat.completions.create(response_model=RefusedOnce, **request)
        assert answer.city == context["values"][1] and len(context["values"]) == 2


def stream() -> None:
    request = {"model": common.MODEL, "messages": QUESTION, "max_retries": 0}
    *_, last = client().chat.completions.create_partial(response_model=Forecast, **request)
    assert last.city and last.degrees


def structured() -> None:
    assert isinstance(ask(), Forecast)
    for mode in MODES:
        if mode is not instructor.Mode.JSON:  # it sends no schema, so that the demo model would write any object
            assert isinstance(ask([mode]), Forecast)
    provider = instructor.from_provider(f"openai/{common.MODEL}")
    assert isinstance(provider.create(response_model=Forecast, messages=QUESTION), Forecast)


def types() -> None:
    for mode in MODES:
        scripted = client(mode, url=common.SCRIPTED_URL)

        def ask_for(
            value: BaseModel, mode: instructor.Mode = mode, scripted: instructor.Instructor = scripted
        ) -> object:
            written = everyday.json_of(value)
            if mode in WRITTEN:
                question = common.write_question(written)
            else:
                question = common.call_question(type(value).__name__, written)
            messages = [{"role": "user", "content": question}]
            request = {"model": common.SCRIPTED_MODEL, "messages": messages, "max_retries": 0}
            answer = scripted.chat.completions.create(response_model=type(value), **request)
            return type(value).model_validate_json(everyday.json_of(answer))  # it has returned a subclass

        everyday.check_examples(ask_for, extra=everyday.LOOSE)


def errors() -> None:
    common.check_error(lambda: ask(model=common.UNKNOWN_MODEL), common.UNKNOWN_MODEL)
    common.check_error(lambda: ask(temperature=9), "temperature")


common.run_features(stream, turns, structured, types, errors)
