"""Options of `carousel serve`: names, types and help texts. app.settings reads their values."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Option:
    """One option: where it goes, how it is read, what it is for."""

    name: str  # the flag without its dashes; the environment and the file use it with underscores
    kind: type
    text: str
    engine: bool = False  # it belongs to EngineConfig, under the same name with underscores
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
    Option("served-model-name", str, "the name clients use; default: the folder's"),
    Option(
        "api-key",
        str,
        "API keys, separated by commas; other users of this machine can see them in the process list, so better given "
        "by the variable or by --keys-file; default: none, and without any key every client is admitted",
    ),
    Option(
        "keys-file",
        str,
        "file with names, digests and limits of API keys, which `carousel keys` edits and the server rereads when it "
        "changes; with it every client needs a key, even while the file has none; default: no file",
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
        "whose pages may ask from a browser besides this server's own, separated by commas, such as "
        "https://chat.example.com; *: any; default: none",
    ),
    Option("chat-template", str, "file with a Jinja chat template to use instead of the checkpoint's"),
    Option(
        "generation-config",
        str,
        "which generation_config.json recommends sampling parameters and names the tokens that end a text: auto is the "
        "checkpoint's own, none recommends nothing, anything else is the path of a file or of a folder that has one",
    ),
    Option(
        "allow-control-tokens",
        bool,
        "encode control tokens in chat messages, such as <|im_end|>, as the model's own; by default they are plain "
        "text there, so that no message can forge a turn",
    ),
    Option("max-queue", int, "most requests of a class that wait; beyond it clients get 503 with Retry-After"),
    Option("max-queue-tokens", int, "most prompt tokens of a class that wait"),
    Option(
        "max-queue-share",
        float,
        "the part of --max-queue and --max-queue-tokens that one tenant (a key, or without keys an address) may take "
        "in a class; beyond it that tenant gets 429 with Retry-After, and others are still admitted; 1: all",
    ),
    Option(
        "requests-per-minute",
        int,
        "requests a minute of each key, or without keys of each address; beyond it 429 with Retry-After; 0: no limit; "
        "default: none for keys and for loopback addresses, 3000 for other addresses",
    ),
    Option(
        "tokens-per-minute",
        int,
        "tokens a minute, of prompts and answers, of each key or address; 0: no limit; "
        "default: none for keys and for loopback addresses, 3000000 for other addresses",
    ),
    Option(
        "max-concurrency",
        int,
        "choices that may wait and run at once, of each key or address; 0: no limit; "
        "default: none for keys and for loopback addresses, 512 for other addresses",
    ),
    Option(
        "max-websockets",
        int,
        "WebSockets open at once, of each key, or without keys of each address; beyond it 429 with Retry-After; 0: no "
        "limit; default: 64, and none for loopback addresses without keys",
    ),
    Option(
        "max-connections",
        int,
        "connections open at once, WebSockets included; beyond it 503 with Retry-After; default: the limit of open "
        "files (`ulimit -n`) less 64",
    ),
    Option(
        "max-connections-per-address",
        int,
        "connections open at once from one address; beyond it 429 with Retry-After; 0: no limit; default: 256, and "
        "none for loopback addresses and for the proxies in FORWARDED_ALLOW_IPS",
    ),
    Option("max-body", int, "most bytes of a request's body"),
    Option(
        "websocket-idle-timeout",
        float,
        "seconds without a frame from the client and without a response after which a WebSocket is closed; inf: never",
    ),
    Option("resume-ttl", float, "seconds a finished answer can still be read again"),
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
    Option("drain-timeout", float, "seconds that running answers get to finish when the server is told to stop"),
    Option("operator-key", str, "key for POST /drain, better given by the variable; default: the route is refused"),
    Option(
        "metrics-key",
        str,
        "key for GET /metrics, better given by the variable; the operator key is accepted too; "
        "default: /metrics needs a key only where API keys are configured",
    ),
    Option("public-metrics", bool, "GET /metrics needs no key, although API keys are configured"),
    Option("slo-ttft", float, "seconds to the first token that count as good, for the goodput in /metrics"),
    Option("slo-itl", float, "seconds between tokens, on average over an answer, that count as good"),
    Option(
        "metering", str, "SQLite file for a row of every request, to bill from (see `carousel usage`); default: none"
    ),
    Option("price-per-hour", float, "of the whole machine, for the cost in /metrics"),
    Option("page-title", str, "name that the chat page shows for this server"),
    Option(
        "page-examples",
        str,
        "questions that an empty conversation on the chat page offers, one a line; an empty text offers nothing; "
        "default: some that the demo model can answer",
    ),
    Option(
        "page-system-prompt",
        str,
        "system prompt that new conversations on the chat page begin with; each person can change it there; default: "
        "none",
    ),
    Option("log-level", str, "how much is logged", choices=("debug", "info", "warning", "error")),
    Option("log-format", str, "json writes each log line as a JSON object", choices=("text", "json")),
    Option("device", str, "auto, cpu, cuda or cuda:N", engine=True),
    Option("dtype", str, "what is computed in", engine=True, choices=("auto", "float32", "bfloat16", "float16")),
    Option(
        "kv-cache-dtype",
        str,
        "what keys and values are kept in; default: as the weights",
        engine=True,
        choices=("auto", "float32", "bfloat16", "float16"),
    ),
    Option(
        "kernels", str, "torch computes without our kernels, for comparison", engine=True, choices=("auto", "torch")
    ),
    Option("batch-invariant", bool, "on a GPU: the same text in every batch, bit for bit; slower", engine=True),
    Option("enforce-eager", bool, "no CUDA graphs: a faster start, slower tokens", engine=True),
    Option(
        "early-launch",
        bool,
        "on a GPU of compute capability 9 or 10: kernels begin while the one before them ends (default: on)",
        engine=True,
    ),
    Option("load-format", str, "dummy makes random weights", engine=True, choices=("safetensors", "dummy")),
    Option("max-model-len", int, "context in tokens; default: the checkpoint's", engine=True),
    Option("max-num-seqs", int, "slots: sequences that run at once", engine=True),
    Option(
        "max-num-batched-tokens", int, "token budget of one step; default: what is read in --step-time", engine=True
    ),
    Option("step-time", float, "fixed seconds a step may take for prompts; default: by the ITL targets", engine=True),
    Option(
        "target-itl-interactive",
        float,
        "longest time between two tokens of a running interactive answer, in seconds, while other prompts are read; "
        "default: 0.09",
        engine=True,
    ),
    Option("target-itl-standard", float, "the same for standard answers; default: 0.12", engine=True),
    Option("target-itl-batch", float, "the same for batch answers; default: 0.25", engine=True),
    Option("prefill-chunk", int, "most prompt tokens of one sequence in one step", engine=True),
    Option("page-size", int, "tokens in a KV page; default: 64 on a GPU, 32 on a CPU", engine=True),
    Option("num-pages", int, "KV pages; default: sized from memory", engine=True),
    Option("gpu-memory-utilization", float, "share of the memory to use (same as --memory-fraction)"),
    Option("memory-fraction", float, "share of the memory to use", engine=True),
    Option("swap-space", float, "GiB of host memory for paused sequences", engine=True),
    Option("enable-prefix-caching", bool, "keep and reuse the KV of common prefixes (default: on)", engine=True),
    Option(
        "batching",
        str,
        "static and dynamic take a batch at a time, for comparison",
        engine=True,
        choices=("continuous", "static", "dynamic"),
    ),
    Option("batch-size", int, "static, dynamic: requests that make a batch complete; default: all slots", engine=True),
    Option("batch-timeout", float, "static, dynamic: seconds after which it starts incomplete", engine=True),
    Option(
        "scheduling-policy",
        str,
        "who goes first and who makes way; the others are for comparison",
        engine=True,
        choices=("carousel", "orca", "vllm", "sglang", "fastserve"),
    ),
    Option("threads", int, "CPU threads of the engine; default: one a core", engine=True),
    Option("max-wait-standard", float, "seconds after which a waiting standard request is overdue", engine=True),
    Option("max-wait-batch", float, "seconds after which a waiting batch request is overdue", engine=True),
    Option("stretch", float, "times longer that a step may take at most for who rides along", engine=True),
    Option("min-share", int, "tokens a resumed request may generate before it is paused again", engine=True),
)
