"""The command `llm`."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import common

MODEL_ENTRY = """
- model_id: {name}
  model_name: {name}
  api_base: {url}/v1
  api_key_name: none
  supports_schema: true
  supports_tools: true
"""
ENTRIES = (
    (common.MODEL, common.URL),
    (common.UNKNOWN_MODEL, common.URL),
    (common.SCRIPTED_MODEL, common.SCRIPTED_URL),
)
FOLDER = Path.home() / "llm"
FUNCTIONS = f"""
def get_weather(city: str) -> str:
    "Return the weather of a city."
    return {common.TOOL_RESULT!r} if city == "Rome" else ""
"""


def command(*arguments: str, model: str = common.MODEL) -> list[str]:
    """Return a command for `arguments`."""
    return ["llm", "prompt", "--key", "none", "--model", model, *arguments]


def ask(*arguments: str, model: str = common.MODEL) -> str:
    """Return the output of a command. Raises `RuntimeError` with its errors."""
    prompt = command(*arguments, model=model)
    done = subprocess.run(prompt, capture_output=True, text=True, env=ENVIRONMENT, timeout=60, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return done.stdout


def chat() -> None:
    assert ask("--no-stream", common.QUESTION).strip()


def stream() -> None:
    assert ask(common.QUESTION).strip()


def turns() -> None:
    for answers in range(3):
        options = [*(["--continue"] if answers else []), *(["--no-stream"] if answers == 2 else [])]
        text = ask(*options, common.COUNT_QUESTION, model=common.SCRIPTED_MODEL)
        assert text.strip() == common.counts(answers)


def tools() -> None:
    functions = ("--functions", FUNCTIONS)
    assert common.TOOL_RESULT in ask(*functions, common.TOOL_QUESTION, model=common.SCRIPTED_MODEL)
    text = ask("--continue", *functions, common.COUNT_QUESTION, model=common.SCRIPTED_MODEL)
    assert text.strip() == common.counts(2, 1), text


def structured() -> None:
    limit = ("--option", "max_tokens", str(common.MAX_TOKENS))
    common.check_forecast(json.loads(ask("--schema", json.dumps(common.FORECAST_SCHEMA), *limit, common.QUESTION)))


def errors() -> None:
    common.check_error(lambda: ask("Hi", model=common.UNKNOWN_MODEL), common.UNKNOWN_MODEL)
    common.check_error(lambda: ask("--option", "top_p", "0", "Hi"), "top_p")


def cancel() -> None:
    prompt = command(common.ENDLESS_QUESTION, model=common.SCRIPTED_MODEL)
    process = subprocess.Popen(prompt, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=ENVIRONMENT)
    try:
        common.wait_for_running(1)
    finally:
        process.terminate()
        process.wait()
    common.wait_for_running(0)


FOLDER.mkdir()
entries = "".join(MODEL_ENTRY.format(name=name, url=url) for name, url in ENTRIES)
(FOLDER / "extra-openai-models.yaml").write_text(entries)
ENVIRONMENT = os.environ | {"LLM_USER_PATH": str(FOLDER)}
common.run_features(chat, stream, turns, tools, structured, errors, cancel)
