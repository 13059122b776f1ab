"""All that crosses the border of the engine, as frozen values.

Inbound: `Request`. Outbound: `TokenEvent`, `EndEvent`, `StatusEvent` and the `Snapshot` of the books.
They are msgspec structs so that the same objects travel between threads and, encoded, between processes.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable

import msgspec


class ServiceClass(enum.IntEnum):
    """Who waits behind this request. A lower number goes first and may pause a higher one."""

    INTERACTIVE = 0
    STANDARD = 1
    BATCH = 2

    @property
    def label(self) -> str:
        """The lower-case name used in metrics, events and on the page."""
        return self.name.lower()


class FinishReason(enum.StrEnum):
    """Why a choice ended."""

    STOP = "stop"  # a stop token was sampled
    LENGTH = "length"  # max_tokens, or the context, is used up
    ABORT = "abort"  # the caller went away or asked to stop
    ERROR = "error"  # the engine failed this request; EndEvent.message says how


class Mechanism(enum.StrEnum):
    """How a paused sequence keeps what it computed."""

    SWAP = "swap"  # its pages move to host memory
    PARTIAL = "partial"  # its pages stay in the prefix cache; what memory is wanted for goes, from the tail on
    RECOMPUTE = "recompute"  # its pages are dropped; its tokens are prefilled again on resume


class Cause(enum.StrEnum):
    """What a waiting request is waiting for."""

    STEP = "step"  # the next step: nobody has been let in since it came
    PROMPT = "prompt"  # the first choice, which puts the prompt through the model for all of them
    ORDER = "order"  # others come first, and have not all got what they wait for
    SLOTS = "slots"  # every slot is taken by its own class or a higher one
    PAGES = "pages"  # the KV pool cannot hold it beside those who run
    BUDGET = "budget"  # it has its slot; the tokens of a step go to others first
    FAIRNESS = "fairness"  # its tenant had more than others of its class who wait
    DEADLINE = "deadline"  # an earlier deadline goes first
    BODY = "body"  # the rest of it, which its client has still to send
    TEXTS = "texts"  # long texts of others, which are tokenised first
    READER = "reader"  # nothing: it is complete, and whoever reads it has not taken all of it
    BATCH = "batch"  # the engine takes a batch at a time, and this one is not complete
    RESTART = "restart"  # an engine: the one that had it is gone, and the next one is on its way


class Phase(enum.StrEnum):
    """What the time of a choice is spent on. From its arrival to its end it is in exactly one of these."""

    QUEUED = "queued"  # it waits for its first slot, or for its first in an engine that took over from another
    PREFILL = "prefill"  # its prompt, or what it had said before its pages were dropped, goes through the model
    DECODE = "decode"  # a token a step
    PAUSED = "paused"  # its slot was given to somebody, and it waits to go on
    SWAPPING = "swapping"  # its pages come back from host memory
    ENDED = "ended"

    @property
    def state(self) -> str:
        """The same for people, who wait, are served, or wait again: queued, running, paused or ended."""
        return "running" if self in (Phase.PREFILL, Phase.DECODE, Phase.SWAPPING) else self.value


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How tokens are chosen. Values are validated where they enter (the API) and again by the engine at submit.

    The stop ids already contain the model's end-of-text ids unless the caller asked to ignore them: the engine knows
    no other way to end a sequence than an id from this set or the length. Text-level stop strings live in the API; who
    came to one is aborted.
    """

    max_tokens: int
    min_tokens: int = 0
    temperature: float = 1.0
    top_k: int = 0  # 0 = off
    top_p: float = 1.0
    min_p: float = 0.0
    frequency_penalty: float = 0.0  # over generated tokens, as OpenAI defines it
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0  # over prompt and generated tokens, as CTRL (Keskar et al. 2019) defines it
    logit_bias: dict[int, float] = {}
    stop_token_ids: tuple[int, ...] = ()
    has_stop_strings: bool = False  # so any token from min_tokens on may be the last one
    seed: int = 0  # uint64; whoever builds the request resolves "no seed" to a random one
    logprobs: int | None = None  # None = off, k = the chosen token's and the k best alternatives'

    @property
    def penalises(self) -> bool:
        """True when what was said before changes what is likely now."""
        return self.frequency_penalty != 0.0 or self.presence_penalty != 0.0 or self.repetition_penalty != 1.0


class Request(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One prompt and `n` answers to it."""

    id: str
    prompt: tuple[int, ...]
    sampling: SamplingParams
    service_class: ServiceClass = ServiceClass.STANDARD
    priority: int = 0  # orders within a class, lower first (vLLM's meaning)
    n: int = 1
    cache_salt: str = ""  # prompts share cached pages only within one salt
    tenant: str = ""  # whose it is: tenants of a class take turns
    weight: float = 1.0  # of its tenant: how much more it may have than one of weight 1
    deadline: float | None = None  # when all of it must be there, on the machine's monotonic clock
    # What an engine that is gone had said, by choice; choices that are not in it had ended. Empty: nothing was said.
    said: dict[int, tuple[int, ...]] = {}
    since: float | None = None  # it waits, on the same clock, where that began with such an engine or before this one
    client_id: str = ""  # the X-Request-Id that its client sent, or that of its WebSocket's handshake; for log lines

    @property
    def log_id(self) -> str:
        """The ID that names it in log lines: the one that its client knows."""
        return self.client_id or self.id

    @property
    def choices(self) -> Iterable[int]:
        """Those that are to be answered, in order."""
        return sorted(self.said) or range(self.n)


class Alternative(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One entry of a top-logprobs list."""

    token_id: int
    logprob: float


class TokenEvent(msgspec.Struct, frozen=True, array_like=True, tag="token", gc=False):
    """One sampled token of one choice. `finish` is set on the last one."""

    request_id: str
    choice: int
    token_id: int
    finish: FinishReason | None = None
    logprob: float | None = None
    top: tuple[Alternative, ...] = ()


class EndEvent(msgspec.Struct, frozen=True, array_like=True, tag="end"):
    """A choice ended without a token: it was aborted, refused or failed."""

    request_id: str
    choice: int
    finish: FinishReason
    message: str = ""
    code: str = ""
    param: str | None = None


class StatusEvent(msgspec.Struct, frozen=True, array_like=True, tag="status"):
    """What happens to a request between tokens, for people and for the account of its time."""

    request_id: str
    choice: int
    phase: Phase
    position: int = 0  # queued, paused: 1 = next
    cause: Cause | None = None  # queued, paused, prefill: what it waits for
    by: ServiceClass | None = (
        None  # paused: the class of whom it made room for; None when memory ran short among equals
    )
    mechanism: Mechanism | None = None  # paused
    why: str = ""  # paused: why this one and no other
    cached_tokens: int = 0  # in its first slot: prompt tokens found in the prefix cache
    at: float = 0.0  # when, on the machine's monotonic clock, which all its processes share

    @property
    def state(self) -> str:
        """`Phase.state`."""
        return self.phase.state


Event = TokenEvent | EndEvent | StatusEvent


class PageCounts(msgspec.Struct, frozen=True, array_like=True):
    """The pool's books. free + cached + held == total, always."""

    total: int
    held: int
    cached: int
    free: int
    swapped: int  # host pages in use
    host_total: int


class Counters(msgspec.Struct, frozen=True, array_like=True):
    """Running totals since the engine started; they only grow."""

    steps: int = 0
    finished: int = 0
    prompt_tokens: int = 0  # prompt tokens of admitted requests
    cached_tokens: int = 0  # of these, found in the prefix cache
    computed_tokens: int = 0  # tokens put through the model, recomputation included
    recomputed_tokens: int = 0  # of these, computed before and dropped
    generated_tokens: int = 0
    swapped_tokens: int = 0  # whose KV was moved to host memory
    preemptions: tuple[tuple[int, int, int], ...] = ((0, 0, 0),) * 3  # by class: swap, partial, recompute
    late: int = 0  # requests that were given up because their deadline could not be met

    def paused_by(self, mechanism: Mechanism) -> int:
        """How often somebody was paused in that way."""
        return sum(by_class[list(Mechanism).index(mechanism)] for by_class in self.preemptions)


class Load(msgspec.Struct, frozen=True, array_like=True):
    """What the engine carries right now; rides on every step's frame."""

    running: tuple[int, int, int]  # by class
    waiting: tuple[int, int, int]  # by class, without the paused
    paused: tuple[int, int, int]  # by class
    pages: PageCounts
    counters: Counters
    decode_rows: int = 0  # of the last step
    prefill_tokens: int = 0  # of the last step
    step_seconds: float = 0.0  # of the last step
    step_target: float = 0.0  # seconds that a step may take for prompts, when they are not urgent
    busy_seconds: float = 0.0  # since the engine started, with a step under way


class SlotView(msgspec.Struct, frozen=True, kw_only=True):
    """One occupied slot, as the live view shows it."""

    slot: int
    request_id: str
    service_class: ServiceClass
    state: str  # "prefill" | "decode"
    context: int
    generated: int
    pages: int


class WaitView(msgspec.Struct, frozen=True, kw_only=True):
    """One waiting or paused request, as the live view shows it."""

    request_id: str
    service_class: ServiceClass
    paused: bool
    waited: float  # seconds
    context: int
    cause: Cause | None = None
    by: ServiceClass | None = None
    mechanism: Mechanism | None = None


class Snapshot(msgspec.Struct, frozen=True, kw_only=True, tag="snapshot"):
    """The whole carousel at one moment. Costs O(slots); sent only while somebody watches."""

    slots: tuple[SlotView, ...]
    waiting: tuple[WaitView, ...]  # the first few in order
    total_slots: int
    page_size: int


class ModelInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What the API needs to know about the loaded model."""

    name: str
    vocab_size: int
    max_model_len: int
    num_pages: int
    page_size: int
    max_num_seqs: int
    device: str
    dtype: str
    parameters: int
