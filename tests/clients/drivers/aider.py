"""aider: chat completions."""

from __future__ import annotations

import common
from agent import Agent

FLAGS = (
    "--no-git",
    "--no-check-update",
    "--no-show-release-notes",
    "--no-show-model-warnings",
    "--analytics-disable",
    "--yes-always",
    "--no-pretty",
)

Agent(
    lambda model, prompt: ["aider", *FLAGS, "--model", f"openai/{model}", "--message", prompt],
    environment={
        "OPENAI_API_BASE": f"{common.SCRIPTED_URL}/v1",
        "OPENAI_API_KEY": "none",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    },
).run_features()
