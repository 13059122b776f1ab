"""Claude Code: Anthropic's messages."""

from __future__ import annotations

import common
from agent import Agent, file_call

Agent(
    lambda model, prompt: ["claude", "--print", "--model", model, "--allowedTools", "Read", "--", prompt],
    call=file_call("Read", "file_path"),
    environment={
        "ANTHROPIC_BASE_URL": common.SCRIPTED_URL,
        "ANTHROPIC_API_KEY": "none",
        "ANTHROPIC_DEFAULT_HAIKU_MODEL": common.SCRIPTED_MODEL,  # of its own small requests
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    },
    unknown_model="There's an issue with the selected model",  # its own words for a 404
).run_features()
