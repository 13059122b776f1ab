"""Clients that are tried, with their pinned packages."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

DRIVERS = Path(__file__).parent / "drivers"

# JavaScript clients run on this Node.js, because most of them need a newer one than some systems have.
NODE = "node@22.23.3"

AI_SDK = (
    "ai@7.0.173",
    "@ai-sdk/openai@4.0.118",
    "@ai-sdk/anthropic@4.0.105",
    "@ai-sdk/openai-compatible@3.0.92",
    "zod@4.6.7",
)
ANTHROPIC_NPM = ("@anthropic-ai/sdk@1.14.0", "zod@4.6.7")
OPENAI_PYTHON = ("openai==3.57.0",)
OPENAI_REALTIME = ("openai[realtime]==3.57.0",)
LIVEKIT = ("livekit-plugins-openai==1.8.9", "livekit-agents==1.8.9")
PIPECAT = ("pipecat-ai==1.14.0",)


@dataclass(frozen=True, slots=True)
class Client:
    """A client, the environment that it runs in, and the driver that tries its features.

    packages: requirements of pip or npm; the environments of equal ones are shared. arguments: further arguments of the
    driver. in_ci: tried by the test suite too, not only by `make clients`. tolerated: beginnings of requests to
    other hosts that no setting of the client prevents; they are refused.
    """

    name: str
    environment: str
    packages: tuple[str, ...]
    driver: str
    arguments: tuple[str, ...] = ()
    in_ci: bool = False
    tolerated: tuple[str, ...] = ()

    @property
    def is_npm(self) -> bool:
        """Return whether the packages are npm's."""
        return "==" not in self.packages[0]

    @property
    def version(self) -> str:
        """Return the version of the first package."""
        return self.packages[0].rpartition("==" if not self.is_npm else "@")[2]


def _ai_sdk(provider: str) -> Client:
    return Client(f"AI SDK, {provider}", "ai-sdk", AI_SDK, "ai_sdk.mjs", (provider,), in_ci=True)


CLIENTS = (
    Client("openai-python, chat", "openai-python", OPENAI_PYTHON, "openai_chat.py", in_ci=True),
    Client("openai-python, responses", "openai-python", OPENAI_PYTHON, "openai_responses.py", in_ci=True),
    Client(
        "openai-python, responses by WebSocket",
        "openai-realtime",
        OPENAI_REALTIME,
        "openai_responses_socket.py",
        in_ci=True,
    ),
    Client("openai-python, realtime", "openai-realtime", OPENAI_REALTIME, "openai_realtime.py", in_ci=True),
    Client("openai-python, completions", "openai-python", OPENAI_PYTHON, "openai_completions.py", in_ci=True),
    Client("anthropic", "anthropic", ("anthropic==2.14.0",), "anthropic_messages.py", in_ci=True),
    Client("openai (npm)", "openai-npm", ("openai@7.59.0", "zod@4.6.7"), "openai_node.mjs", in_ci=True),
    Client(
        "anthropic (npm)", "anthropic-npm", ("@anthropic-ai/sdk@1.14.0", "zod@4.6.7"), "anthropic_node.mjs", in_ci=True
    ),
    _ai_sdk("openai"),
    _ai_sdk("anthropic"),
    _ai_sdk("openai-compatible"),
    Client("LangChain", "langchain", ("langchain-openai==1.7.4", "langchain==1.5.2"), "langchain_chat.py", in_ci=True),
    Client("pydantic-ai", "pydantic-ai", ("pydantic-ai-slim[openai]==2.68.0",), "pydantic_ai_agent.py", in_ci=True),
    Client("ollama", "ollama", ("ollama==0.6.3",), "ollama_chat.py", in_ci=True),
    Client("ollama (npm)", "ollama-npm", ("ollama@0.6.4",), "ollama_node.mjs"),
    Client("ChatOllama", "langchain-ollama", ("langchain-ollama==1.1.0", "langchain==1.5.2"), "ollama_langchain.py"),
    Client("litellm", "litellm", ("litellm==1.110.2",), "litellm_completion.py"),
    Client("LlamaIndex", "llama-index", ("llama-index-llms-openai-like==0.8.1",), "llama_index_chat.py"),
    Client("instructor", "instructor", ("instructor==1.17.0",), "instructor_models.py"),
    Client("openai-agents", "openai-agents", ("openai-agents==0.24.0",), "openai_agents.py"),
    Client(
        "openai-agents (npm)",
        "agents-npm",
        ("@openai/agents-core@0.20.0", "@openai/agents-openai@0.20.0", "zod@4.6.7"),
        "agents.mjs",
    ),
    Client(
        "openai-agents, realtime (npm)",
        "agents-realtime",
        ("@openai/agents-realtime@0.20.0", "@openai/agents-core@0.20.0", "zod@4.6.7"),
        "agents_realtime.mjs",
    ),
    Client("LiveKit agents, realtime", "livekit", LIVEKIT, "livekit_realtime.py"),
    Client("LiveKit agents, chat", "livekit", LIVEKIT, "livekit_llm.py", ("chat",)),
    Client("LiveKit agents, responses", "livekit", LIVEKIT, "livekit_llm.py", ("responses",)),
    Client("LiveKit agents, responses by WebSocket", "livekit", LIVEKIT, "livekit_llm.py", ("socket",)),
    Client("pipecat, realtime", "pipecat", PIPECAT, "pipecat_realtime.py"),
    Client("pipecat, chat", "pipecat", PIPECAT, "pipecat_llm.py", ("chat",)),
    Client("pipecat, responses", "pipecat", PIPECAT, "pipecat_llm.py", ("responses",)),
    Client("pipecat, responses by WebSocket", "pipecat", PIPECAT, "pipecat_llm.py", ("socket",)),
    Client("smolagents", "smolagents", ("smolagents[openai]==1.26.0",), "smolagents_model.py"),
    Client("DSPy", "dspy", ("dspy==3.4.1",), "dspy_predict.py"),
    Client("llm", "llm", ("llm==0.36",), "llm_command.py"),
    Client("GuideLLM", "guidellm", ("guidellm==0.8.1",), "guidellm_run.py"),
    Client("Claude Code", "claude-code", ("@anthropic-ai/claude-code@2.1.332",), "claude_code.py"),
    Client("Codex", "codex", ("@openai/codex@0.171.0",), "codex.py"),
    Client(
        "opencode",
        "opencode",
        ("opencode-ai@1.18.33",),
        "opencode.py",
        tolerated=("CONNECT registry.",),  # for the types of plugins
    ),
    Client("qwen-code", "qwen-code", ("@qwen-code/qwen-code@0.24.4",), "qwen_code.py"),
    Client(
        "aider",
        "aider",
        ("aider-chat==0.86.2",),
        "aider.py",
        tolerated=("CONNECT raw.githubusercontent.com:443",),  # for prices of models
    ),
    Client("Open WebUI", "open-webui", ("open-webui==0.12.4", "playwright==1.65.2"), "open_webui_page.py"),
)
