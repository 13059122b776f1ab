"""Codex: responses."""

from __future__ import annotations

import common
from agent import HOME, SECRET_FILE, Agent

CONFIG = f"""
model_provider = "carousel"
check_for_update_on_startup = false

[model_providers.carousel]
name = "Carousel"
base_url = "{common.SCRIPTED_URL}/v1"
wire_api = "responses"

[analytics]
enabled = false

[features]
apps = false
plugins = false
"""

(HOME / ".codex").mkdir()
(HOME / ".codex/config.toml").write_text(CONFIG)
FLAGS = ("--skip-git-repo-check", "--sandbox", "danger-full-access", "--model")
Agent(
    lambda model, prompt: ["codex", "exec", *FLAGS, model, prompt],
    continued=lambda model, prompt: ["codex", "exec", *FLAGS, model, "resume", "--last", prompt],
    call=f'@call exec_command {{"cmd": "cat {SECRET_FILE}"}}',
).run_features()
