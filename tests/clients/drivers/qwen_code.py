"""qwen-code: chat completions."""

from __future__ import annotations

import json

import common
from agent import HOME, Agent, file_call

(HOME / ".qwen").mkdir()
(HOME / ".qwen/settings.json").write_text(json.dumps({"privacy": {"usageStatisticsEnabled": False}}))

Agent(
    lambda model, prompt: ["qwen", "--auth-type", "openai", "--model", model, prompt],
    continued=lambda model, prompt: ["qwen", "--continue", "--auth-type", "openai", "--model", model, prompt],
    call=file_call("read_file", "file_path"),
    environment={
        "OPENAI_BASE_URL": f"{common.SCRIPTED_URL}/v1",
        "OPENAI_API_KEY": "none",
    },
).run_features()
