"""The openai library for Python: text completions."""

from __future__ import annotations

import json

import common
from openai import BadRequestError, NotFoundError, OpenAI
from openai.types import Completion

client = OpenAI(base_url=f"{common.URL}/v1", api_key="none", max_retries=0)
scripted = OpenAI(base_url=f"{common.SCRIPTED_URL}/v1", api_key="none", max_retries=0)

FIELDS = {"model": common.MODEL, "prompt": "One two three", "max_tokens": 20}


def chat() -> None:
    answer = Completion.model_validate(client.completions.create(**FIELDS, logprobs=2).to_dict())
    assert answer.choices[0].text
    several = client.completions.create(**FIELDS | {"prompt": ["One two three", "The fox"]}, n=2)
    assert [choice.index for choice in several.choices] == [0, 1, 2, 3]


def stream() -> None:
    # Not validated: the library's type has no null as the finish reason of a chunk, which OpenAI's server sends too.
    assert "".join(chunk.choices[0].text for chunk in client.completions.create(**FIELDS, stream=True))


def structured() -> None:
    body = {"structured_outputs": {"json": common.FORECAST_SCHEMA}}
    answer = client.completions.create(**FIELDS | {"max_tokens": common.MAX_TOKENS}, extra_body=body)
    common.check_forecast(json.loads(answer.choices[0].text))


def errors() -> None:
    create = client.completions.create
    unknown = FIELDS | {"model": common.UNKNOWN_MODEL}
    common.check_error(lambda: create(**unknown), NotFoundError.__name__, common.UNKNOWN_MODEL)
    common.check_error(lambda: create(**FIELDS, temperature=9), BadRequestError.__name__, "temperature")


def cancel() -> None:
    fields = {"model": common.SCRIPTED_MODEL, "prompt": common.ENDLESS_QUESTION, "max_tokens": 100_000}
    with scripted.completions.create(**fields, stream=True) as chunks:
        next(iter(chunks))
        common.wait_for_running(1)
    common.wait_for_running(0)


common.run_features(chat, stream, structured, errors, cancel)
