"""DSPy's language model. Its predictions send no schema to a model that litellm does not list."""

from __future__ import annotations

import os

import common

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # read at the import; otherwise the list of prices is fetched
import dspy


def model(kind: str = "chat", name: str = common.MODEL, **fields: object) -> dspy.LM:
    """Return a model without retries and cache."""
    server = {"api_base": f"{common.URL}/v1", "api_key": "none", "num_retries": 0, "cache": False}
    return dspy.LM(f"openai/{name}", model_type=kind, max_tokens=common.MAX_TOKENS, **server, **fields)


def chat() -> None:
    for kind in ("chat", "responses"):
        [answer] = model(kind)(common.QUESTION)
        assert answer


def errors() -> None:
    common.check_error(lambda: model(name=common.UNKNOWN_MODEL)("Hi"), common.UNKNOWN_MODEL)
    common.check_error(lambda: model(temperature=9)("Hi"), "temperature")


common.run_features(chat, errors)
