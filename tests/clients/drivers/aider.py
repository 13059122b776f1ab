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


def command(model: str, prompt: str, *flags: str) -> list[str]:
    """Return the command for a prompt."""
    return ["aider", *FLAGS, *flags, "--model", f"openai/{model}", "--message", prompt]


Agent(
    command,
    continued=lambda model, prompt: command(model, prompt, "--restore-chat-history"),
    environment={
        "OPENAI_API_BASE": f"{common.SCRIPTED_URL}/v1",
        "OPENAI_API_KEY": "none",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    },
).run_features()
