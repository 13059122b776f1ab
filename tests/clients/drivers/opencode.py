"""opencode: chat completions."""

from __future__ import annotations

import json

import common
from agent import Agent, file_call

CONFIG = {
    "autoupdate": False,
    "share": "disabled",
    "provider": {
        "carousel": {
            "npm": "@ai-sdk/openai-compatible",
            "options": {"baseURL": f"{common.SCRIPTED_URL}/v1", "apiKey": "none"},
            "models": {common.SCRIPTED_MODEL: {}, common.UNKNOWN_MODEL: {}},
        }
    },
}

Agent(
    lambda model, prompt: ["opencode", "run", "--model", f"carousel/{model}"],
    continued=lambda model, prompt: ["opencode", "run", "--continue", "--model", f"carousel/{model}"],
    call=file_call("read", "filePath"),
    environment={
        "OPENCODE_CONFIG_CONTENT": json.dumps(CONFIG),
        "OPENCODE_DISABLE_MODELS_FETCH": "1",
        "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1",
    },
    prompt_on_stdin=True,  # a prompt on the command line arrives in quotes
).run_features()
