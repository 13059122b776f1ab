"""DSPy: its language model and modules. They send no schema to a model that litellm does not list."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from decimal import Decimal

import common

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # read at the import; otherwise the list of prices is fetched
import dspy


def model(kind: str = "chat", name: str = common.MODEL, url: str = common.URL, **fields: object) -> dspy.LM:
    """Return a model without retries and cache."""
    server = {"api_base": f"{url}/v1", "api_key": "none", "num_retries": 0, "cache": False}
    return dspy.LM(f"openai/{name}", model_type=kind, max_tokens=common.MAX_TOKENS, **server, **fields)


def chat() -> None:
    for kind in ("chat", "responses"):
        [answer] = model(kind)(common.QUESTION)
        assert answer


def scripted(kind: str = "chat") -> dspy.LM:
    """Return the scripted model."""
    return model(kind, common.SCRIPTED_MODEL, common.SCRIPTED_URL)


def get_weather(city: str) -> str:
    """Return the weather of a city."""
    assert city == "Rome"
    return common.write_question(json.dumps(ANSWER))  # results are text of the user, which the scripted model obeys


FIRST = {"next_thought": "a", "next_tool_name": "get_weather", "next_tool_args": {"city": "Rome"}}
# The last step, and the fields that are asked for after it.
ANSWER = {"next_thought": "b", "next_tool_name": "finish", "next_tool_args": {}, "reasoning": "c", "answer": "cloudy"}


def turns() -> None:
    for kind in ("chat", "responses"):
        lm, messages = scripted(kind), []
        for answers in range(3):
            messages.append({"role": "user", "content": common.COUNT_QUESTION})
            [answer] = lm(messages=messages)
            text = answer if isinstance(answer, str) else answer["text"]
            messages.append({"role": "assistant", "content": text})
            assert text == common.counts(answers)


def tools() -> None:
    # The first adapter reads no object; the module then falls back to one, which is an object.
    question = common.write_question(json.dumps(FIRST))
    for kind in ("chat", "responses"):
        with dspy.context(lm=scripted(kind)):
            result = dspy.ReAct("question -> answer", tools=[get_weather])(question=question)
        assert result.answer == "cloudy", result


def structured() -> None:
    class Answer(dspy.Signature):
        """Answer the question."""

        question: str = dspy.InputField()
        total: Decimal = dspy.OutputField()
        issued: datetime = dspy.OutputField()

    question = common.write_question('{"total": "12.50", "issued": "2026-03-14T15:09:26Z"}')
    with dspy.context(lm=scripted(), adapter=dspy.JSONAdapter()):
        result = dspy.Predict(Answer)(question=question)
    assert (result.total, result.issued) == (Decimal("12.50"), datetime(2026, 3, 14, 15, 9, 26, tzinfo=UTC))


def errors() -> None:
    common.check_error(lambda: model(name=common.UNKNOWN_MODEL)("Hi"), common.UNKNOWN_MODEL)
    common.check_error(lambda: model(temperature=9)("Hi"), "temperature")


common.run_features(chat, turns, tools, structured, errors)
