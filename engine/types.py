"""Frozen values that enter and leave the engine.

Inbound: `Request`. Outbound: `TokenEvent`, `EndEvent`, `StatusEvent`, and the `Snapshot` of slots and queue. They are
msgspec structs, so that the same objects travel between threads and, encoded, between processes.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, get_type_hints

import msgspec

from engine.cache_note import CacheNote
from engine.drafting.note import DraftNote

MAX_NUMBER = 1e6  # upper bound for parameters without a natural one; far beyond any use and far below overflow


@dataclass(frozen=True, slots=True)
class Bounds:
    """Smallest and largest value of a field. `engine.checks` refuses others; decoding a message does not."""

    low: float
    high: float


class ServiceClass(enum.IntEnum):
    """Service class of a request. A lower number goes first and may preempt a higher one."""

    INTERACTIVE = 0
    STANDARD = 1
    BATCH = 2

    @property
    def label(self) -> str:
        """Return the lower-case name used in metrics, events and on the page."""
        return self.name.lower()


class FinishReason(enum.StrEnum):
    """Reason for the end of a choice."""

    STOP = "stop"  # a stop token was sampled
    LENGTH = "length"  # max_tokens or the context is used up
    ABORT = "abort"  # the client disconnected or cancelled
    ERROR = "error"  # the engine failed this request; see EndEvent.message


class PreemptionMode(enum.StrEnum):
    """Method by which a preempted sequence keeps its computed tokens."""

    SWAP = "swap"  # its pages move to host memory
    PARTIAL = "partial"  # its pages stay in the prefix cache; pages that are needed are evicted from the tail on
    RECOMPUTE = "recompute"  # its pages are dropped; its tokens are prefilled again on resume


class WaitReason(enum.StrEnum):
    """Reason for which a request waits."""

    STEP = "step"  # the next step: none has been scheduled since it arrived
    PROMPT = "prompt"  # the first choice, which computes the prompt for all choices
    ORDER = "order"  # other requests go first and still wait for resources
    SLOTS = "slots"  # every slot is taken by its own class or a higher one
    PAGES = "pages"  # the KV pool cannot hold it beside the running sequences
    BUDGET = "budget"  # it has a slot, but the tokens of this step go to other sequences
    PACE = "pace"  # its prompt is read a few tokens a step, for the target time between tokens of running streams
    FAIRNESS = "fairness"  # its tenant had more service than other waiting tenants of its class
    DEADLINE = "deadline"  # an earlier deadline goes first
    REQUEST_BODY = "body"  # the rest of the request body, which its client still has to send
    GRAMMAR = "grammar"  # its grammar, which is compiled first, or the mask of its next token
    DISK = "disk"  # the pages of its conversation, which are read from disk
    TOKENIZATION = "texts"  # long texts of other requests, which are tokenized first
    READER = "reader"  # nothing: it is complete, but its reader has not read all of it
    BATCH = "batch"  # a batch is admitted as a whole, and this one is not complete
    RESTART = "restart"  # an engine: the previous one has died, and the next one is starting
    CLIENT = "client"  # its client, which has paused it
    TRIAL = "trial"  # a request that may have ended an engine is computed alone, or waits for its turn to be


class Phase(enum.StrEnum):
    """Activity of a choice. From arrival to end a choice is in exactly one phase."""

    QUEUED = "queued"  # it waits for its first slot, also after a pause or in an engine that replaced another
    PREFILL = "prefill"  # its prompt, or its output so far if its pages were dropped, goes through the model
    DECODE = "decode"  # one token per step
    PAUSED = "paused"  # it was preempted and waits to resume, or its client has paused it
    SWAPPING = "swapping"  # its pages are copied back from host memory
    ENDED = "ended"

    @property
    def state(self) -> str:
        """Return the phase as shown to users: queued, running, paused or ended."""
        return "running" if self in (Phase.PREFILL, Phase.DECODE, Phase.SWAPPING) else self.value


class Vocabulary(msgspec.Struct, frozen=True):
    """Tokens of a model, for constraints.

    tokens: bytes of each token by id, empty for ids without text. special_ids: ids that are never part of a text.
    eos_ids: ids that end a text.
    """

    tokens: tuple[bytes, ...]
    special_ids: tuple[int, ...] = ()
    eos_ids: tuple[int, ...] = ()


class ReasoningLimit(msgspec.Struct, frozen=True):
    """Maximum number of tokens in the reasoning block at the beginning of an answer, and the tokens that close it.

    open_tag: opens the block; empty if the prompt has opened it. close_tag: closes it. marks: bytes that stand for
    special tokens, of which a tag consists then; other tokens with the same text are text.
    """

    max_tokens: int
    closing_ids: tuple[int, ...]
    open_tag: bytes
    close_tag: bytes
    marks: dict[int, bytes] = {}


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Sampling parameters. Validated at entry (the API) and again by the engine on submission.

    The stop IDs already contain the model's end-of-text IDs unless the caller requested to ignore them: the engine ends
    a sequence only at one of these IDs or at the length limit. Text-level stop strings are handled by the API, which
    aborts a choice that reaches one.
    """

    max_tokens: int
    min_tokens: int = 0
    temperature: Annotated[float, Bounds(0.0, MAX_NUMBER)] = 1.0
    top_k: Annotated[int, Bounds(0, 2**31 - 1)] = 0  # 0 = off
    top_p: Annotated[float, Bounds(0.0, 1.0)] = 1.0
    min_p: Annotated[float, Bounds(0.0, 1.0)] = 0.0
    top_n_sigma: Annotated[float, Bounds(0.0, MAX_NUMBER)] = 0.0  # 0 = off
    # Over generated tokens, as OpenAI defines them.
    frequency_penalty: Annotated[float, Bounds(-MAX_NUMBER, MAX_NUMBER)] = 0.0
    presence_penalty: Annotated[float, Bounds(-MAX_NUMBER, MAX_NUMBER)] = 0.0
    # Over prompt and generated tokens, as CTRL (Keskar et al. 2019) defines it.
    repetition_penalty: Annotated[float, Bounds(1 / MAX_NUMBER, MAX_NUMBER)] = 1.0
    logit_bias: dict[int, float] = {}
    stop_token_ids: tuple[int, ...] = ()
    has_stop_strings: bool = False  # so any token from min_tokens on may be the last one
    # The code that builds the request replaces "no seed" by a random one.
    seed: Annotated[int, Bounds(0, 2**64 - 1)] = 0
    logprobs: int | None = None  # None = off, k = the chosen token's and the k best alternatives'
    # None = off, k = those of the prompt's tokens after the first, and the k best alternatives'
    prompt_logprobs: int | None = None
    grammar: str | None = None  # that the text must satisfy; see `engine.constraints.grammars`
    reasoning_limit: ReasoningLimit | None = None

    @property
    def has_penalties(self) -> bool:
        """Return whether earlier tokens change the probabilities of the next one."""
        return self.frequency_penalty != 0.0 or self.presence_penalty != 0.0 or self.repetition_penalty != 1.0

    @property
    def needs_full_sampler(self) -> bool:
        """Return whether every token needs more than filters and masks: edits of the logits, or log-probabilities."""
        return bool(self.logit_bias) or self.has_penalties or self.logprobs is not None


SAMPLING_BOUNDS = {
    name: bounds
    for name, hint in get_type_hints(SamplingParams, include_extras=True).items()
    for bounds in getattr(hint, "__metadata__", ())
}


class Request(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One prompt and the parameters of its `n` answers."""

    id: str
    prompt: tuple[int, ...]
    sampling: SamplingParams
    service_class: ServiceClass = ServiceClass.STANDARD
    priority: int = 0  # orders within a class, lower first (vLLM's meaning)
    n: int = 1
    cache_salt: str = ""  # prompts share cached pages only within the same salt
    tenant: str = ""  # owner: tenants of a class take turns
    weight: float = 1.0  # of its tenant: share relative to a tenant of weight 1
    deadline: float | None = None  # when all of it must be complete, on the monotonic clock of the process that has it
    # Output of a previous engine that died, by choice; choices not listed had ended. Empty: there was no output.
    output_so_far: dict[int, tuple[int, ...]] = {}
    # Start of the wait on the same clock, if it began before this request or in an engine that died.
    waiting_since: float | None = None
    client_id: str = ""  # the X-Request-Id sent by its client, or that of its WebSocket's handshake; for log lines
    # Not read by an engine: what an API process that adopts the request needs beside its tokens. Empty: it cannot be
    # adopted.
    note: bytes = b""
    alias: str = ""  # second name by which it can be adopted
    is_trial: bool = False  # it may have ended an engine, and is computed alone until it has made progress
    is_paused: bool = False  # by its client: it has no slot and waits for none
    # Seconds for which its conversation is expected to go on after the answer; 0: unknown.
    session_seconds: float = 0.0
    # Output of several choices in the order in which it was sent, and more than `output_so_far` if that is computed
    # again.
    sent: SentOutput | None = None
    prediction: tuple[int, ...] = ()  # tokens that the answer is expected to have, for drafts; changes no text
    speculation: bool = True  # False: a token a step, without drafts; changes no text

    @property
    def log_id(self) -> str:
        """Return the ID for log lines: the one that its client knows."""
        return self.client_id or self.id

    @property
    def choices(self) -> Iterable[int]:
        """Return the choices that are to be answered, in order."""
        return sorted(self.output_so_far) or range(self.n)


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


class SentOutput(msgspec.Struct, frozen=True, array_like=True):
    """Output of a request in the order in which it was sent.

    tokens: except for those that ended a choice. choices: a byte for each. ends: of choices, without
    log-probabilities, each with the number of `tokens` before it.
    """

    tokens: tuple[int, ...] = ()
    choices: bytes = b""
    ends: tuple[tuple[int, TokenEvent | EndEvent], ...] = ()


class PromptToken(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Log-probability of a token of the prompt, given the tokens before it, and the best alternatives'."""

    logprob: float
    top: tuple[Alternative, ...] = ()


class PromptEvent(msgspec.Struct, frozen=True, array_like=True, tag="prompt"):
    """Log-probabilities of the prompt from token `start` on. Repeated after a recomputation, with the same values."""

    request_id: str
    choice: int
    start: int
    tokens: tuple[PromptToken, ...]


class EndEvent(msgspec.Struct, frozen=True, array_like=True, tag="end"):
    """End of a choice without a token: it was aborted, refused or failed."""

    request_id: str
    choice: int
    finish: FinishReason
    message: str = ""
    code: str = ""
    param: str | None = None


class StatusEvent(msgspec.Struct, frozen=True, array_like=True, tag="status"):
    """Status change of a choice between tokens, for users and for its timeline."""

    request_id: str
    choice: int
    phase: Phase
    position: int = 0  # queued, paused: 1 = next
    cause: WaitReason | None = None  # queued, paused, prefill: reason for waiting
    preempted_by: ServiceClass | None = (
        None  # paused: class of the sequence that got its place; None if memory ran short
    )
    mechanism: PreemptionMode | None = None  # paused
    victim_reason: str = ""  # paused: why this sequence was chosen
    cached_tokens: int = 0  # in its first slot: prompt tokens found in the prefix cache
    monotonic_time: float = 0.0  # on the monotonic clock of the process that has the event; see engine.clock
    cache_note: CacheNote | None = None  # in its first slot, of the choice that computes the prompt
    draft_note: DraftNote | None = None  # ended, if a step had drafts

    @property
    def state(self) -> str:
        """Return `Phase.state`."""
        return self.phase.state


Event = TokenEvent | EndEvent | StatusEvent | PromptEvent


class ModelInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Properties of the loaded model that the API needs."""

    name: str
    vocab_size: int
    max_model_len: int
    num_pages: int
    page_size: int
    max_num_seqs: int
    device: str
    dtype: str
    parameters: int
    is_exact: bool = False  # the tokens of a request are the same in any batch, so those computed again are the same
    format: str = "safetensors"  # of the files
    family: str = "carousel"  # architecture as the files name it, such as llama
    quantization: str = ""  # of most weights, such as Q4_K_M or int8; empty: they have `dtype`
    file_bytes: int = 0  # of the stored weights
    fingerprint: str = ""  # of weights, dtype and kernels: answers of equal ones can be compared

    @property
    def storage(self) -> str:
        """Return the quantisation of most weights, or their dtype."""
        return self.quantization or self.dtype

    @property
    def max_sequence_tokens(self) -> int:
        """Return the maximum number of tokens of a sequence, prompt and output, by context and KV cache."""
        return min(self.max_model_len, self.num_pages * self.page_size)
