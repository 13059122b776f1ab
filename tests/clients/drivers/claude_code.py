"""Claude Code: Anthropic's messages."""

from __future__ import annotations

import common
from agent import Agent, file_call


def command(model: str, prompt: str, *flags: str) -> list[str]:
    """Return the command for a prompt."""
    return ["claude", "--print", *flags, "--model", model, "--allowedTools", "Read", "--", prompt]


Agent(
    command,
    continued=lambda model, prompt: command(model, prompt, "--continue"),
    call=file_call("Read", "file_path"),
    environment={
        "ANTHROPIC_BASE_URL": common.SCRIPTED_URL,
        "ANTHROPIC_API_KEY": "none",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    },
    unknown_model="There's an issue with the selected model",  # its own words for a 404
).run_features()
