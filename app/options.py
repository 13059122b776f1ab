"""Options of `carousel serve`: names, types and help texts. app.settings reads their values."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Option:
    """One option: its name, type, destination and description."""

    name: str  # flag without dashes; the environment and the config file use it with underscores
    kind: type
    text: str
    engine: bool = False  # field of EngineConfig, with underscores
    choices: tuple[str, ...] = ()
    short: str = ""

    @property
    def key(self) -> str:
        return self.name.replace("-", "_")

    @property
    def variable(self) -> str:
        return f"CAROUSEL_{self.key.upper()}"


OPTIONS = (
    Option("host", str, "address to listen on; 127.0.0.1 is this machine only"),
    Option("port", int, "port to listen on; 0 takes a free one"),
    Option("served-model-name", str, "model name for clients; default: name of the folder"),
    Option(
        "api-key",
        str,
        "API keys, separated by commas; other users of this machine can see flags in the process list, so prefer the "
        "variable or --keys-file; default: none; without any key every client is admitted",
    ),
    Option(
        "keys-file",
        str,
        "file with names, digests and limits of API keys, which `carousel keys` edits and the server reloads when it "
        "changes; with it every client needs a key, even while the file is empty; default: no file",
    ),
    Option("root-path", str, "path under which a proxy serves this server, such as /llm, stripped or not"),
    Option(
        "allowed-hosts",
        str,
        "names in the Host header that are accepted besides localhost, separated by commas, such as a proxy's; *: any; "
        "default: none on a loopback address; on others every IP address and this machine's own names",
    ),
    Option(
        "allowed-origins",
        str,
        "origins whose pages may use this server from a browser besides its own, separated by commas, such as "
        "https://chat.example.com; *: any; default: none",
    ),
    Option("chat-template", str, "file with a Jinja chat template to use instead of the checkpoint's"),
    Option(
        "generation-config",
        str,
        "source of sampling defaults and end-of-text tokens: auto is the checkpoint's generation_config.json, none "
        "uses no sampling defaults, anything else is the path of such a file or of a folder with one",
    ),
    Option(
        "allow-control-tokens",
        bool,
        "encode control tokens in chat messages, such as <|im_end|>, as the model's own; by default they are plain "
        "text there, so that no message can forge a turn",
    ),
    Option("max-queue", int, "maximum waiting requests of a class; beyond it clients get 503 with Retry-After"),
    Option("max-queue-tokens", int, "maximum waiting prompt tokens of a class"),
    Option(
        "max-queue-share",
        float,
        "share of --max-queue and --max-queue-tokens that one tenant (a key, or without keys an address) may use in a "
        "class; beyond it that tenant gets 429 with Retry-After, and others are still admitted; 1: all",
    ),
    Option(
        "requests-per-minute",
        int,
        "requests per minute of each key, or without keys of each address; beyond it clients get 429; 0: no limit; "
        "default: none for keys and for loopback addresses, 3000 for other addresses",
    ),
    Option(
        "tokens-per-minute",
        int,
        "tokens per minute, of prompts and answers, of each key or address; 0: no limit; "
        "default: none for keys and for loopback addresses, 3000000 for other addresses",
    ),
    Option(
        "max-concurrency",
        int,
        "maximum choices that wait or run, of each key or address; 0: no limit; "
        "default: none for keys and for loopback addresses, 512 for other addresses",
    ),
    Option(
        "max-websockets",
        int,
        "maximum open WebSockets of each key, or without keys of each address; beyond it 429 with Retry-After; 0: no "
        "limit; default: 64, and none for loopback addresses without keys",
    ),
    Option(
        "max-connections",
        int,
        "maximum open connections, WebSockets included; beyond it 503 with Retry-After; default: the limit of open "
        "files (`ulimit -n`) minus 64",
    ),
    Option(
        "max-connections-per-address",
        int,
        "maximum open connections from one address; beyond it 429 with Retry-After; 0: no limit; default: 256, and "
        "none for loopback addresses and for the proxies in FORWARDED_ALLOW_IPS",
    ),
    Option("max-body", int, "maximum bytes of a request's body"),
    Option(
        "websocket-idle-timeout",
        float,
        "seconds without a frame from the client and without a response after which a WebSocket is closed; inf: never",
    ),
    Option("resume-ttl", float, "seconds for which a finished answer can be read again"),
    Option(
        "watchdog-timeout",
        float,
        "seconds without progress, inside a step too, after which an engine is replaced; inf: never",
    ),
    Option(
        "restart-interval",
        float,
        "seconds between further engine starts after several in a row failed; default: the process exits with status 1",
    ),
    Option("drain-timeout", float, "seconds for running answers to finish when the server stops"),
    Option("operator-key", str, "key for POST /drain, preferably set by the variable; default: the route is refused"),
    Option(
        "metrics-key",
        str,
        "key for GET /metrics, preferably set by the variable; the operator key is accepted too; "
        "default: /metrics needs a key only if API keys are configured",
    ),
    Option("public-metrics", bool, "GET /metrics needs no key even if API keys are configured"),
    Option("slo-ttft", float, "objective for the time to the first token in seconds, for the goodput in /metrics"),
    Option("slo-itl", float, "objective for the mean time between tokens in seconds, for the goodput in /metrics"),
    Option("metering", str, "SQLite file with a row per request, for billing (see `carousel usage`); default: none"),
    Option("price-per-hour", float, "price of the whole machine per hour, for the cost in /metrics"),
    Option("page-title", str, "name that the chat page shows for this server"),
    Option(
        "page-examples",
        str,
        "questions that an empty conversation on the chat page offers, one per line; an empty text offers none; "
        "default: examples that the demo model can answer",
    ),
    Option(
        "page-system-prompt",
        str,
        "system prompt that new conversations on the chat page begin with; each person can change it there; default: "
        "none",
    ),
    Option("log-level", str, "minimum level of log lines", choices=("debug", "info", "warning", "error")),
    Option("log-format", str, "json writes each log line as a JSON object", choices=("text", "json")),
    Option("device", str, "device: auto, cpu, cuda or cuda:N", engine=True),
    Option(
        "dtype", str, "data type of the computation", engine=True, choices=("auto", "float32", "bfloat16", "float16")
    ),
    Option(
        "kv-cache-dtype",
        str,
        "data type of cached keys and values; default: that of the weights",
        engine=True,
        choices=("auto", "float32", "bfloat16", "float16"),
    ),
    Option("kernels", str, "torch uses no custom kernels, for comparison", engine=True, choices=("auto", "torch")),
    Option("batch-invariant", bool, "on a GPU: the same text in every batch, bit for bit; slower", engine=True),
    Option("enforce-eager", bool, "no CUDA graphs: a faster start, slower tokens", engine=True),
    Option(
        "early-launch",
        bool,
        "on a GPU of compute capability 9 or 10: start kernels while the preceding one ends (default: on)",
        engine=True,
    ),
    Option("load-format", str, "dummy creates random weights", engine=True, choices=("safetensors", "dummy")),
    Option("max-model-len", int, "context length in tokens; default: the checkpoint's", engine=True),
    Option("max-num-seqs", int, "batch slots: sequences that run at once", engine=True),
    Option(
        "max-num-batched-tokens", int, "token budget of a step; default: as many as --step-time allows", engine=True
    ),
    Option("step-time", float, "fixed seconds of a step for prompts; default: from the ITL targets", engine=True),
    Option(
        "target-itl-interactive",
        float,
        "maximum time between two tokens of a running interactive answer, in seconds, while prompts are prefilled; "
        "default: 0.09",
        engine=True,
    ),
    Option("target-itl-standard", float, "the same for standard answers; default: 0.12", engine=True),
    Option("target-itl-batch", float, "the same for batch answers; default: 0.25", engine=True),
    Option("prefill-chunk", int, "maximum prompt tokens of one sequence in one step", engine=True),
    Option("page-size", int, "tokens in a KV page; default: 64 on a GPU, 32 on a CPU", engine=True),
    Option("num-pages", int, "number of KV pages; default: from the available memory", engine=True),
    Option("gpu-memory-utilization", float, "share of memory to use (same as --memory-fraction)"),
    Option("memory-fraction", float, "share of memory to use", engine=True),
    Option("swap-space", float, "GiB of host memory for preempted sequences", engine=True),
    Option("enable-prefix-caching", bool, "keep and reuse the KV cache of shared prefixes (default: on)", engine=True),
    Option(
        "batching",
        str,
        "static and dynamic form complete batches, for comparison",
        engine=True,
        choices=("continuous", "static", "dynamic"),
    ),
    Option("batch-size", int, "static, dynamic: requests of a complete batch; default: all slots", engine=True),
    Option("batch-timeout", float, "static, dynamic: seconds after which an incomplete batch starts", engine=True),
    Option(
        "scheduling-policy",
        str,
        "policy of service order and preemption; the others are for comparison",
        engine=True,
        choices=("carousel", "orca", "vllm", "sglang", "fastserve"),
    ),
    Option("threads", int, "CPU threads of the engine; default: one per core", engine=True),
    Option("max-wait-standard", float, "seconds after which a waiting standard request is overdue", engine=True),
    Option("max-wait-batch", float, "seconds after which a waiting batch request is overdue", engine=True),
    Option(
        "max-step-slowdown", float, "maximum factor by which piggybacked batch work may lengthen a step", engine=True
    ),
    Option("min-share", int, "tokens that a resumed request may generate before it is preempted again", engine=True),
)
