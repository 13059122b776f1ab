"""Parts shared by the Python drivers. Drivers run in the environments of their clients, so this needs nothing else.

A driver is run as `python DRIVER URL SCRIPTED_URL`: the addresses of a server with the demo model, and of one with the
scripted model of `tests.clients.scripted_engine`. It prints a JSON line for each feature that it has tried.
"""

from __future__ import annotations

import json
import sys
import time
import traceback
import urllib.request
from collections.abc import Callable, Collection

URL, SCRIPTED_URL = sys.argv[1:3]
MODEL, SCRIPTED_MODEL = "demo", "scripted"
UNKNOWN_MODEL = "no-such-model"

QUESTION = "Count from 1 to 8."
MAX_TOKENS = 500  # more than the demo model needs, also where it writes blanks between tokens of JSON
TOOL_RESULT = "18 degrees and cloudy"
# The scripted model calls the tool, and then answers with its result.
TOOL_QUESTION = 'What is the weather in Rome? @call get_weather {"city": "Rome"}'
ENDLESS_QUESTION = "@endless"
# The scripted model answers with the numbers of earlier answers and results of tools that the prompt has.
COUNT_QUESTION = "How far are we? @count"

WEATHER_PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string", "description": "name of the city"}},
    "required": ["city"],
    "additionalProperties": False,
}
# The demo model chooses freely among few answers, so that an answer is short.
FORECAST_SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Rome", "Oslo"]}, "degrees": {"type": "integer", "minimum": 0, "maximum": 40}},
    "required": ["city", "degrees"],
    "additionalProperties": False,
}

FREE_SECONDS = 10.0  # in which an aborted request must have left the server


def run_features(*features: Callable[[], object], limits: Collection[Callable[[], object]] = ()) -> None:
    """Call the function of each feature, which has its name, and print whether it has raised an exception.

    limits: further features, which are known limits of the server; their functions check that it refuses them by name.
    """
    for feature in (*features, *limits):
        outcome = {"feature": feature.__name__, "ok": True, "detail": "", "limit": feature in limits}
        try:
            feature()
        except Exception:
            outcome |= {"ok": False, "detail": traceback.format_exc(limit=-4)}
        print(f"\n{json.dumps(outcome)}", flush=True)  # a library may have printed the beginning of a line


def running_requests() -> int:
    """Return the number of requests that the scripted server is answering."""
    with urllib.request.urlopen(f"{SCRIPTED_URL}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return int(sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith("vllm:num_requests_running{")))


def wait_for_running(number: int, seconds: float = FREE_SECONDS) -> None:
    """Wait until the scripted server is answering `number` requests. Raises `TimeoutError`."""
    deadline = time.monotonic() + seconds
    while (running := running_requests()) != number:
        if time.monotonic() > deadline:
            raise TimeoutError(f"the server is answering {running} requests instead of {number}")
        time.sleep(0.02)


def counts(answers: int, results: int = 0) -> str:
    """Return the answer of the scripted model to `COUNT_QUESTION`."""
    return f"Earlier answers: {answers}; results of tools: {results}."


def write_question(value: str) -> str:
    """Return a question that the scripted model answers with the JSON `value`."""
    return f"Describe it. @write {value}"


def call_question(name: str, arguments: str) -> str:
    """Return a question that the scripted model answers with a call. arguments: a JSON object."""
    return f"Describe it. @call {name} {arguments}"


def check_forecast(value: object) -> None:
    """Check an object against `FORECAST_SCHEMA`."""
    assert isinstance(value, dict), value
    assert sorted(value) == ["city", "degrees"] and value["city"] in ("Rome", "Oslo"), value
    assert type(value["degrees"]) is int and 0 <= value["degrees"] <= 40, value


def check_error(call: Callable[[], object], *parts: str) -> None:
    """Check that a call raises an exception with all `parts` in its text."""
    try:
        call()
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        assert all(part in text for part in parts), text
        return
    raise AssertionError("the call did not raise an exception")
