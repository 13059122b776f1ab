"""Settings of the server: one annotated field declares everything about an option (docs/operations.md).

Names are vLLM's if vLLM has such an option. `app.options` reads their values.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import Annotated, Literal

from app.admission.tenants import Tenant
from app.mcp.addresses import ServerAddress
from app.network_settings import NetworkSettings
from app.text.generation_config import AUTO_CONFIG
from engine.config import COMPUTATION, EngineConfig
from engine.options import FINITE, SHARE, Option, at_least, between
from engine.types import ServiceClass

ToolParser = Literal[
    "auto", "deepseek", "glm", "harmony", "hermes", "llama3_json", "mistral", "none", "pythonic", "qwen3_coder"
]

# Groups of options.
MODEL, KEYS, LIMITS = "Model and text", "Keys", "Limits"
RECOVERY, OBSERVATION, PAGE = "Recovery and shutdown", "Observation", "Chat page"

# Options of `carousel engine` too.
Revision = Annotated[str | None, Option(MODEL, "branch, tag or commit of a hub name", "the default branch")]
LogLevel = Annotated[
    str, Option(OBSERVATION, "minimum level of log lines", choices=("debug", "info", "warning", "error"))
]
LogFormat = Annotated[str, Option(OBSERVATION, "json writes each log line as a JSON object", choices=("text", "json"))]
MAX_REPLICAS = 64


class SettingsError(Exception):
    """An option is unknown or has an invalid value; the message names the option."""


class Settings(NetworkSettings, frozen=True, kw_only=True, dict=True):  # dict: for the cached property
    """Options of the server and of the engine. Immutable. An annotated field is an option (`engine.options`)."""

    model_name: Annotated[
        str,
        Option(MODEL, "model name for clients", "the hub name, or name of the folder or file", key="served_model_name"),
    ]
    revision: Revision = None
    model_warning: str = ""  # reason for which the bundled model is served instead of the default one
    chat_template: Annotated[  # text of the template; the option is its path
        str | None,
        Option(MODEL, "file with a Jinja chat template to use instead of the checkpoint's", "the checkpoint's"),
    ] = None
    generation_config: Annotated[
        str,
        Option(
            MODEL,
            "source of sampling defaults and end-of-text tokens: auto is the checkpoint's generation_config.json, none "
            "uses no sampling defaults, anything else is the path of such a file or of a folder with one",
        ),
    ] = AUTO_CONFIG
    allow_control_tokens: Annotated[
        bool,
        Option(
            MODEL,
            "encode control tokens in chat messages, such as <|im_end|>, as the model's own, so that a message can end "
            "its turn and begin another one; off: they are plain text there",
        ),
    ] = False
    tool_parser: Annotated[
        ToolParser,
        Option(
            MODEL,
            "format in which the model writes tool calls; auto finds it in the chat template, and is hermes for one "
            "without tools; none refuses requests with tools",
        ),
    ] = "auto"
    strict_tools: Annotated[
        bool,
        Option(
            MODEL,
            "enforce the schema of every tool's arguments; off: only of tools with strict: true, and of calls that a "
            "request requires",
        ),
    ] = False
    replicas: Annotated[
        int,
        Option(
            COMPUTATION,
            "engines on this machine that serve the model together, each on cores or a GPU of its own",
            bounds=(between(1, MAX_REPLICAS),),
        ),
    ] = 1
    tenants: Annotated[  # of the option, and of the config file
        tuple[Tenant, ...],
        Option(
            KEYS,
            "API keys, separated by commas; each is a tenant; without any key every client is admitted; other users of "
            "this machine can see flags in the process list, so prefer the variable or --keys-file",
            "none",
            key="api_key",
            kind=str,
        ),
    ] = ()
    keys_file: Annotated[
        str | None,
        Option(
            KEYS,
            "file with names, digests and limits of API keys, which `carousel keys` edits and the server reloads when "
            "it changes; with it every client needs a key, even while the file is empty",
            "no file",
        ),
    ] = None
    keys_file_tenants: tuple[Tenant, ...] = ()
    operator_key: Annotated[
        str | None, Option(KEYS, "key for POST /drain, preferably set by the variable", "the route is refused")
    ] = None
    metrics_key: Annotated[
        str | None,
        Option(
            KEYS,
            "key for GET /metrics, preferably set by the variable; the operator key is accepted too",
            "/metrics needs a key only if API keys are configured",
        ),
    ] = None
    public_metrics: Annotated[bool, Option(KEYS, "GET /metrics needs no key even if API keys are configured")] = False
    max_queue: Annotated[
        int,
        Option(
            LIMITS,
            "maximum waiting requests of a class; beyond it clients get 503 with Retry-After",
            bounds=(at_least(1),),
        ),
    ] = 2048
    max_queue_tokens: Annotated[
        int, Option(LIMITS, "maximum waiting prompt tokens of a class; beyond it as above", bounds=(at_least(1),))
    ] = 4 << 20
    max_queue_share: Annotated[
        float,
        Option(
            LIMITS,
            "share of --max-queue and --max-queue-tokens that one tenant (a key, or without keys an address) may use "
            "in a class; beyond it that tenant gets 429 with Retry-After, and others are still admitted; 1: all",
            bounds=(SHARE,),
        ),
    ] = 0.5
    max_paused: Annotated[
        int, Option(LIMITS, "maximum requests that a tenant has paused; beyond it 429", bounds=(at_least(0),))
    ] = 100
    max_pause: Annotated[
        float, Option(LIMITS, "seconds after which a paused request ends with an error", bounds=(at_least(1), FINITE))
    ] = 3600.0
    max_queue_wait_interactive: Annotated[
        float,
        Option(
            LIMITS,
            "maximum seconds for which an interactive request may have to wait for a slot, as estimated when it "
            "arrives; beyond it 503 with the time until then as Retry-After; inf: no limit",
            bounds=(at_least(1),),
        ),
    ] = 60.0
    max_queue_wait_standard: Annotated[
        float, Option(LIMITS, "the same for a standard request", bounds=(at_least(1),))
    ] = 600.0
    max_queue_wait_batch: Annotated[float, Option(LIMITS, "the same for a batch request", bounds=(at_least(1),))] = (
        math.inf
    )
    requests_per_minute: Annotated[
        int | None,
        Option(
            LIMITS,
            "requests per minute of each key, or without keys of each address; beyond it clients get 429; 0: no limit",
            "none for keys and for loopback addresses, 3000 for other addresses",
            (at_least(0),),
        ),
    ] = None
    tokens_per_minute: Annotated[
        int | None,
        Option(
            LIMITS,
            "tokens per minute, of prompts and answers, of each key or address; 0: no limit",
            "none for keys and for loopback addresses, 3000000 for other addresses",
            (at_least(0),),
        ),
    ] = None
    max_concurrency: Annotated[
        int | None,
        Option(
            LIMITS,
            "maximum choices that wait or run, of each key or address; 0: no limit",
            "none for keys and for loopback addresses, 512 for other addresses",
            (at_least(0),),
        ),
    ] = None
    max_websockets: Annotated[
        int | None,
        Option(
            LIMITS,
            "maximum open WebSockets of each key, or without keys of each address; beyond it 429 with Retry-After; 0: "
            "no limit",
            "64, and none for loopback addresses without keys",
            (at_least(0),),
        ),
    ] = None
    max_connections: Annotated[
        int | None,
        Option(
            LIMITS,
            "maximum open connections, WebSockets included; beyond it 503 with Retry-After",
            "the limit of open files (`ulimit -n`) minus 96",
            (at_least(1),),
        ),
    ] = None
    max_connections_per_address: Annotated[
        int | None,
        Option(
            LIMITS,
            "maximum open connections from one address; beyond it 429 with Retry-After; 0: no limit",
            "256, and none for loopback addresses and for the proxies in FORWARDED_ALLOW_IPS",
            (at_least(0),),
        ),
    ] = None
    max_body: Annotated[int, Option(LIMITS, "maximum bytes of a request's body", bounds=(at_least(1),))] = 4 << 20
    max_body_memory: Annotated[
        int,
        Option(
            LIMITS,
            "maximum bytes of memory for the bodies that are being read, decoded and tokenized, of which each takes "
            "eight times its size; further ones wait unread, at most 30 s, and then get 503 with Retry-After",
            bounds=(at_least(1),),
        ),
    ] = 256 << 20
    max_tenant_body_memory: Annotated[
        int,
        Option(
            LIMITS,
            "the same for each key, or without keys for each address; at least eight times --max-body; beyond it 429 "
            "with Retry-After",
            bounds=(at_least(1),),
        ),
    ] = 64 << 20
    websocket_idle_timeout: Annotated[
        float,
        Option(
            LIMITS,
            "seconds without a frame from the client and without a response after which a WebSocket is closed; inf: "
            "never",
            bounds=(at_least(1),),
        ),
    ] = 3600.0
    resume_ttl: Annotated[
        float, Option(RECOVERY, "seconds for which a finished answer can be read again", bounds=(at_least(0),))
    ] = 300.0
    store: Annotated[
        str | None,
        Option(
            RECOVERY,
            "SQLite file from which a server that is started again continues; it has texts of users; further API "
            "processes have files beside it, with -api1, -api2, ... in their names; none: nothing is kept",
            "store-PORT.db in $STATE_DIRECTORY, $XDG_STATE_HOME/carousel or ~/.local/state/carousel; none with --port "
            "0, as no later server would find it",
        ),
    ] = None
    store_days: Annotated[
        float,
        Option(
            RECOVERY,
            "days after which ended records are removed from the store, at the start and each hour, except for rows of "
            "the chat page; inf: never",
            bounds=(at_least(1),),
        ),
    ] = 30.0
    store_size: Annotated[
        int,
        Option(
            RECOVERY,
            "maximum bytes of the responses, conversations and chat completions in the store, in equal parts in those "
            "of several API processes; beyond it the key, or without keys the address, with most loses its oldest",
            bounds=(at_least(1),),
        ),
    ] = 1 << 30
    watchdog_timeout: Annotated[
        float,
        Option(
            RECOVERY,
            "seconds without progress, inside a step too, after which an engine is replaced; inf: never",
            bounds=(at_least(5),),
        ),
    ] = 20.0
    restart_interval: Annotated[
        float | None,
        Option(
            RECOVERY,
            "seconds between further engine starts after several in a row failed",
            "the process exits with status 1",
            (at_least(1), FINITE),
        ),
    ] = None
    drain_timeout: Annotated[
        float,
        Option(RECOVERY, "seconds for running answers to finish when the server stops", bounds=(at_least(0), FINITE)),
    ] = 30.0
    slo_ttft: Annotated[
        float,
        Option(OBSERVATION, "objective in seconds for the time to the first token, for goodput", bounds=(at_least(0),)),
    ] = 1.0
    slo_itl: Annotated[
        float,
        Option(OBSERVATION, "objective in seconds for the mean gap between tokens, for goodput", bounds=(at_least(0),)),
    ] = 0.1
    metering: Annotated[
        str | None,
        Option(OBSERVATION, "SQLite file with a row per request, for billing (see `carousel usage`)", "none"),
    ] = None
    price_per_hour: Annotated[
        float,
        Option(OBSERVATION, "price of the machine per hour, for the cost in /metrics", bounds=(at_least(0), FINITE)),
    ] = 0.0
    log_level: LogLevel = "info"
    log_format: LogFormat = "text"
    page_title: Annotated[str, Option(PAGE, "name that the chat page shows for this server")] = "Carousel"
    page_examples: Annotated[
        str | None,
        Option(
            PAGE,
            "questions that an empty conversation on the chat page offers, one per line; an empty text offers none",
            "four questions that fit the model",
        ),
    ] = None
    page_system_prompt: Annotated[
        str,
        Option(PAGE, "system prompt of new conversations on the chat page; each person can change it there", "none"),
    ] = ""
    mcp: Annotated[
        tuple[ServerAddress, ...],
        Option(
            PAGE,
            "URLs of MCP servers whose tools the chat page offers and runs, separated by commas, each with a name "
            "before it if its host is not to be shown (NAME=URL); a secret is written into the URL (https://TOKEN@host "
            "or https://USER:PASSWORD@host), preferably in the variable; needs API keys",
            "none",
            kind=str,
        ),
    ] = ()
    page_bytes: Annotated[
        int,
        Option(
            PAGE,
            "maximum bytes of a key's rows of the chat page in the store (its conversations)",
            bounds=(at_least(1),),
        ),
    ] = 64 << 20
    engine: EngineConfig

    @property
    def requires_keys(self) -> bool:
        """Return whether clients need a key. With a keys file they do even while it is empty, so that revoking the last
        key admits no client.
        """
        return self.keys_file is not None or bool(self.tenants)

    @property
    def max_queue_wait(self) -> dict[ServiceClass, float]:
        """Return the maximum estimated wait of each class in seconds."""
        return {each: getattr(self, f"max_queue_wait_{each.label}") for each in ServiceClass}

    @cached_property
    def tenants_by_digest(self) -> dict[str, Tenant]:
        """Return the tenants of all sources by the digests of their keys."""
        return {tenant.digest: tenant for tenant in (*self.tenants, *self.keys_file_tenants)}
