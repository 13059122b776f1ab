"""Service: shared state of the routes. Holds settings, engine client, text model, streams and metrics; starts
generations.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import msgspec

from app.admission.event_pacer import EventPacer
from app.admission.queues import Admission
from app.admission.rate_limits import RateLimits
from app.admission.refused_keys import RefusedKeys
from app.admission.tenants import LIMIT_OPTIONS, Tenant
from app.admission.thread_queue import ThreadQueue
from app.admission.websocket_limits import WebSocketLimits
from app.engine_client.client import EngineClient, EngineState, EngineUnavailable
from app.errors import ApiError
from app.generation.generation import Generation
from app.generation.registry import StreamRegistry
from app.http.json_body import MAX_INLINE_BYTES, check_structure
from app.observe.energy import Energy
from app.observe.live_feed import LiveFeed
from app.observe.metrics import Metrics
from app.protocols.common import SamplingFields, Schema, parse
from app.settings import Settings, SettingsError, check_keys
from app.streams.stream_log import Encoder, StreamLog
from app.streams.timeline import IntakeTimeline
from app.text.chat_template import MessagesRefused, ReservedVariable
from app.text.text_model import TextModel
from app.text.tokenize_queue import TokenizeQueue
from engine.errors import ContextExceeded, RequestRefused
from engine.host import num_cores
from engine.types import ModelInfo, Request, SamplingParams, ServiceClass

if TYPE_CHECKING:
    from app.observe.metering import Metering

ENGINE_UNAVAILABLE = "the engine is not available; see the server log"
MAX_INLINE_TURNS = 64  # of a conversation that is rendered on the event loop; a template takes about 20 us per turn
CHARACTERS_PER_TOKEN = 16  # characters per token of the context in the longest text that /tokenize accepts
CPU_SHARE = min(0.5, 0.05 * num_cores())  # share of a core for large bodies, and for texts of /tokenize and /detokenize
READ_SECONDS_PER_BYTE = 2.5e-9  # CPU time of reading a body on the event loop
MAX_RESUME_SECONDS = 600.0  # maximum seconds for which an answer continues without a reader
Turns = list[dict[str, Any]]  # of a conversation, as chat templates read them
NO_NAMES: Mapping[str, str] = MappingProxyType({})


def new_stream_id() -> str:
    """Return an unguessable stream id."""
    return secrets.token_hex(12)


def _renamed(error: RequestRefused, names: Mapping[str, str]) -> ApiError:
    """Return an engine's refusal with the protocol's parameter names."""
    message = str(error)
    if "max_tokens" in names:
        message = message.replace("max_tokens", names["max_tokens"])
    return ApiError(400, message, param=names.get(error.param or "", error.param), code=error.code)


@dataclass
class Service:
    """Shared state of the routes, created in `app.server` and accessed through `request.app.state`."""

    settings: Settings
    client: EngineClient
    text: TextModel
    registry: StreamRegistry
    metrics: Metrics
    admission: Admission
    energy: Energy
    metering: Metering | None
    started: int  # Unix time, shown to clients
    draining: bool = False  # the server is stopping: new requests are refused
    encoding: TokenizeQueue = field(init=False)
    live: LiveFeed = field(init=False)
    # Decoding and rendering of large bodies.
    body_queue: ThreadQueue = field(default_factory=lambda: ThreadQueue(1, max_cpu_share=CPU_SHARE))
    # /tokenize and /detokenize, on which no answer depends.
    tokenizer_queue: ThreadQueue = field(default_factory=lambda: ThreadQueue(1, max_cpu_share=CPU_SHARE))
    pacer: EventPacer = field(default_factory=EventPacer)
    limits: RateLimits = field(init=False)
    websockets: WebSocketLimits = field(init=False)
    refused_keys: RefusedKeys = field(default_factory=lambda: RefusedKeys(time.monotonic))
    _running: int = 0  # choices of requests that have received a slot and have not ended

    def __post_init__(self) -> None:
        self.encoding = TokenizeQueue(self.text)
        defaults = {limit: getattr(self.settings, limit) for limit in LIMIT_OPTIONS}
        self.limits = RateLimits(defaults, time.monotonic)
        self.websockets = WebSocketLimits(self.settings.max_websockets, time.monotonic)
        self.live = LiveFeed(self.client, self.metrics.recent, lambda: self.draining)

    @property
    def info(self) -> ModelInfo:
        """Return the loaded model. Raises `ApiError` (503) before it is loaded, and if no engine will be started."""
        if self.client.info is None or not self.client.accepts_requests:
            loading = self.client.loading
            raise ApiError(
                503,
                f"the model is loading ({loading.stage})"
                if self.client.phase is EngineState.LOADING
                else ENGINE_UNAVAILABLE,
                code="engine_unavailable",
                headers={"Retry-After": "2"},
            )
        return self.client.info

    def admit(self, tenant: Tenant, requested: ServiceClass | None, tokens: int = 0, choices: int = 1) -> ServiceClass:
        """Return the class in which a request of `tenant` may wait: the requested one, else standard or the highest
        that the tenant may use.

        Raises `ApiError` while the server stops (503), for a class that the tenant may not use (403), or if a limit is
        reached (429, 503). Called before expensive work for a request, and again when it is queued.
        """
        if requested is None:
            requested = ServiceClass.STANDARD if tenant.may(ServiceClass.STANDARD) else tenant.highest_class
        try:
            self._check(tenant, requested, tokens, choices)
        except ApiError as error:
            self.metrics.count_refusal(tenant, requested, error.code or "other")
            raise
        return requested

    def _check(self, tenant: Tenant, requested: ServiceClass, tokens: int, choices: int) -> None:
        _ = self.info
        if self.draining:
            raise ApiError(503, "the server is stopping", code="server_shutdown", headers={"Retry-After": "5"})
        if not tenant.may(requested):
            tiers = ", ".join(tenant.tiers)
            raise ApiError(
                403,
                f"this key may only use the service tiers {tiers}",
                param="service_tier",
                code="tier_not_allowed",
            )
        self.limits.check(tenant, choices)
        self.admission.check(tenant, requested, tokens, self.encoding.pending, max(0, self._slots - self._running))

    def check_model(self, name: str | None) -> None:
        """Raise `ApiError` (404) if `name` is not the served model. None selects the served model."""
        if name is not None and name != self.settings.model_name:
            raise ApiError(
                404,
                f"the model {name[:200]!r} does not exist; the served model is {self.settings.model_name!r}",
                param="model",
                code="model_not_found",
            )

    async def encode(
        self,
        text: str,
        service_class: ServiceClass,
        *,
        add_special_tokens: bool,
        intake: IntakeTimeline,
        names: Mapping[str, str] = NO_NAMES,
    ) -> list[int]:
        """Return the token ids of a prompt, tokenized in turn. Raises `ApiError` if it is far too long."""
        most = self.info.max_model_len
        try:
            return await self.encoding.encode(
                text, service_class, add_special_tokens=add_special_tokens, max_tokens=most, intake=intake
            )
        except ContextExceeded as error:
            raise _renamed(error, names) from None

    async def parse(self, schema: type[Schema], body: bytes, intake: IntakeTimeline | None = None) -> Schema:
        """Return `body` as `schema`. Raises `ApiError` (400) that names the first wrong field."""
        if len(body) <= MAX_INLINE_BYTES:
            return parse(schema, body)

        def work() -> Schema:
            check_structure(body)
            return parse(schema, body)

        return await self.body_queue.run(
            work, size=len(body), cpu_seconds_spent=READ_SECONDS_PER_BYTE * len(body), intake=intake
        )

    async def render_chat(
        self,
        turns: Turns,
        variables: dict[str, Any] | None = None,
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
    ) -> str:
        """Return the rendered text of a conversation. Raises `ApiError` if the template refuses it."""
        size = sum(len(turn["content"]) for turn in turns)
        is_short = len(turns) <= MAX_INLINE_TURNS and size <= MAX_INLINE_BYTES

        def work() -> str:
            return self.text.render_chat(
                turns,
                variables,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
            )

        try:
            return work() if is_short else await self.body_queue.run(work, size=size)
        except ReservedVariable as error:
            name = "chat_template_kwargs"
            raise ApiError(400, f"{name}: {error}", param=name, code="invalid_value") from None
        except MessagesRefused as error:
            raise ApiError(400, f"messages: {error}", param="messages", code="template_refused") from None

    async def tokenize(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Return the token ids of a text on which no answer depends. Raises `ApiError` (400) if it is longer than
        `CHARACTERS_PER_TOKEN` times the context.
        """
        most = CHARACTERS_PER_TOKEN * self.info.max_model_len
        if len(text) > most:
            raise ApiError(
                400,
                f"the text has {len(text):,} characters; at most {most:,} are tokenized at once, "
                f"{CHARACTERS_PER_TOKEN} for each token of the context",
                param="prompt",
                code="context_length_exceeded",
            )
        return await self.tokenizer_queue.run(
            lambda: self.encoding.encode_inline(text, add_special_tokens), size=len(text)
        )

    async def detokenize(self, token_ids: list[int]) -> str:
        """Return the text of `token_ids`. Raises `ApiError` (400) for one that is not in the vocabulary."""
        vocab_size = self.info.vocab_size

        def work() -> str:
            for token_id in token_ids:
                if not 0 <= token_id < vocab_size:
                    message = f"tokens: {token_id} is not a token id"
                    raise ApiError(400, message, param="tokens", code="invalid_value")
            return self.text.decode(token_ids, skip_special_tokens=False)

        return await self.tokenizer_queue.run(work, size=16 * len(token_ids))

    def token_limit(self, wanted: int | None, prompt_tokens: int) -> int:
        """Return `wanted`, or by default as many tokens as context and KV pool have left after the prompt."""
        if wanted is not None:
            return wanted
        info = self.info
        return max(1, min(info.max_model_len, info.num_pages * info.page_size) - prompt_tokens)

    def generate(
        self,
        prompt: list[int],
        fields: SamplingFields,
        *,
        max_tokens: int,
        logprobs: int | None,
        encoder: Encoder | None,
        tenant: Tenant,
        service_class: ServiceClass,
        intake: IntakeTimeline,
        names: Mapping[str, str] = NO_NAMES,
        continues_prompt: bool = False,
        grace: float = 0.0,
    ) -> Generation:
        """Start answering a request of one of the text protocols. Raises `ApiError` if the engine refuses it."""
        return self.start(
            prompt,
            fields.sampling(max_tokens, self.text.eos_token_ids, logprobs, self.text.sampling_defaults),
            service_class=service_class,
            priority=fields.priority or 0,
            n=fields.n or 1,
            stops=fields.stops,
            encoder=encoder,
            tenant=tenant,
            intake=intake,
            deadline_ms=fields.deadline_ms,
            names=names,
            continues_prompt=continues_prompt,
            grace=grace,
        )

    def start(
        self,
        prompt: list[int],
        sampling: SamplingParams,
        *,
        service_class: ServiceClass,
        stops: tuple[str, ...],
        encoder: Encoder | None,
        tenant: Tenant,
        intake: IntakeTimeline,
        names: Mapping[str, str] = NO_NAMES,
        priority: int = 0,
        n: int = 1,
        continues_prompt: bool = False,
        grace: float = 0.0,
        deadline_ms: int | None = None,
        stream_id: str | None = None,
    ) -> Generation:
        """Queue a request and register its stream, under `stream_id` if the client already has it. Its deadline counts
        from its arrival.

        continues_prompt: the answer continues the text of the prompt. names: the protocol's names of engine parameters
        that are named differently. Raises `ApiError`.
        """
        self.admit(tenant, service_class, len(prompt), n)
        stream_id = stream_id or new_stream_id()
        deadline_ms = tenant.deadline_ms if deadline_ms is None else deadline_ms
        request = Request(
            id=stream_id,
            prompt=tuple(prompt),
            sampling=sampling,
            service_class=service_class,
            priority=priority,
            n=n,
            cache_salt=tenant.owner,
            tenant=tenant.id,
            weight=tenant.weight,
            deadline=None if deadline_ms is None else intake.arrived_at + deadline_ms / 1000,
            client_id=intake.client_id,
        )
        try:
            self.client.check(request)  # before anything is created from its tokens
        except RequestRefused as error:
            self.metrics.count_refusal(tenant, service_class, error.code)
            raise _renamed(error, names) from None
        except EngineUnavailable:
            raise ApiError(503, ENGINE_UNAVAILABLE, code="engine_unavailable", headers={"Retry-After": "2"}) from None
        generation = Generation(
            request,
            self.text,
            stops,
            StreamLog(stream_id, self.registry.epoch, tenant.owner),
            encoder,
            self.client,
            intake,
            continues_prompt=continues_prompt,
            grace=min(grace, MAX_RESUME_SECONDS),
            on_start=self._started,
            on_end=self._ended,
            on_token=self.metrics.token_batch(service_class, tenant.name).add_token,
        )
        self.client.submit(request, generation.handle_event)
        self.admission.add_waiting(tenant.id, service_class, len(prompt))
        self.limits.enter(tenant, n, len(prompt))
        self.registry.add(generation)
        generation.start_deadline_timer()
        return generation

    async def drain(self, seconds: float, is_hurried: Callable[[], bool] = lambda: False) -> None:
        """Refuse new requests, let requests with readers finish for `seconds` or until `is_hurried()`, then end the
        rest with an error.
        """
        self.draining = True
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not is_hurried():
            if all(generation.has_no_reader for generation in self.registry.live()):
                break
            await asyncio.sleep(0.05)
        for generation in self.registry.live():
            generation.fail("the server stopped before the answer was complete", "server_shutdown")

    def replace_tenants(self, tenants: tuple[Tenant, ...], keys_file_tenants: tuple[Tenant, ...] = ()) -> None:
        """Replace the tenants whose keys are accepted; running answers continue. Raises `SettingsError` for a key that
        has another use, and if no key would be left without a keys file, which would admit every client.
        """
        changed = msgspec.structs.replace(self.settings, tenants=tenants, keys_file_tenants=keys_file_tenants)
        check_keys(changed.tenants_by_digest, changed.operator_key, changed.metrics_key)
        if self.settings.requires_keys and not changed.requires_keys:
            raise SettingsError("no key is left; restart the server to serve without keys")
        self.settings = changed
        self.metrics.names |= {tenant.id: tenant.name for tenant in changed.tenants_by_digest.values()}

    def current_tenant(self, tenant: Tenant) -> Tenant | None:
        """Return `tenant` with its current limits; None if its key was revoked, or if a key is now required and it has
        none.
        """
        return self.settings.tenants_by_digest.get(tenant.digest) if self.settings.requires_keys else tenant

    def close(self) -> None:
        """Write pending data to disk. Blocks; further calls do nothing."""
        if self.metering is not None:
            self.metering.close()

    @property
    def _slots(self) -> int:
        return self.client.info.max_num_seqs if self.client.info else 1

    def _started(self, generation: Generation) -> None:
        self._running += generation.request.n
        self._leave_queue(generation)

    def _leave_queue(self, generation: Generation) -> None:
        request = generation.request
        self.admission.remove_waiting(request.tenant, request.service_class, len(request.prompt))

    def _ended(self, generation: Generation) -> None:
        if generation.timing.started is None:
            self._leave_queue(generation)
        else:
            self._running -= generation.request.n
        request = generation.request
        self.limits.leave(request.tenant, request.n, generation.completion_tokens)
        self.registry.finish(generation)
        self.metrics.count_end(generation)
        if self.metering is not None:
            name = self.metrics.name_of(generation.request.tenant)
            self.metering.count_end(generation, name, self.settings.model_name, self._slots)
