"""Service: shared state of the routes. Holds settings, engine client, text model, streams and metrics; starts
generations.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from app.admission.body_budget import BodyBudget
from app.admission.event_pacer import EventPacer
from app.admission.kept_sessions import KeptSessions
from app.admission.queues import Admission
from app.admission.rate_limits import RateLimits
from app.admission.refused_keys import RefusedKeys
from app.admission.request_counts import RequestCounts
from app.admission.request_pace import RequestPace
from app.admission.shared_uses import SharedUses
from app.admission.tenants import LIMIT_OPTIONS, TIER_OF_CLASS, Tenant
from app.admission.thread_queue import Caller
from app.admission.websocket_limits import WebSocketLimits
from app.conversations.memory_store import MemoryStore
from app.conversations.saves import Saves
from app.conversations.shelf import Limits
from app.conversations.store import ConversationStore
from app.engine_client.client import EngineClient, EngineUnavailable
from app.engine_client.grammar_checker import GrammarChecker
from app.engine_client.in_flight_request import Sink
from app.engine_client.member import EngineState
from app.errors import ApiError
from app.generation.assembly import assemble
from app.generation.generation import Generation
from app.generation.idempotency import IdempotentRequests
from app.generation.notes import noted
from app.generation.prepared import PreparedPrompt
from app.generation.prompt_batch import PromptBatch
from app.generation.registry import StreamRegistry
from app.generation.request import AnswerHead, GenerationRequest, Observer
from app.generation.warm_requests import WarmRequests
from app.http.siblings import Siblings
from app.observe.energy import Energy
from app.observe.live_feed import LiveFeed
from app.observe.metrics import Metrics
from app.options import check_keys
from app.prompts import Prompts, constraint_param, with_names
from app.settings import Settings, SettingsError
from app.store.entries import Entry, Note
from app.streams.stream_log import StreamLog
from app.streams.timeline import IntakeTimeline
from app.text.text_model import TextModel
from engine.errors import RequestRefused
from engine.types import ModelInfo, Request, ServiceClass, WaitReason

if TYPE_CHECKING:
    from app.observe.metering import Metering
    from app.store.state_file import StateFile

ENGINE_UNAVAILABLE = "the engine is not available; see the server log"


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
    state_file: StateFile | None
    started: int  # Unix time, shown to clients
    draining: bool = False  # the server is stopping: new requests are refused, unless it hands over
    hands_over: bool = False  # new connections go to another server, and requests on old ones are served
    has_successor: Callable[[], bool] = lambda: False
    before_accepting: Callable[[], Awaitable[None]] | None = None  # called once the engine starts
    # called with ID or alias of a request that is not known here, and its owner: `app.adoption`
    adopt: Callable[[str, str], Awaitable[None]] | None = None
    siblings: Siblings | None = None  # API processes that share the port
    prompts: Prompts = field(init=False)
    grammars: GrammarChecker = field(init=False)
    idempotent: IdempotentRequests = field(init=False)
    warm: WarmRequests = field(init=False)
    live: LiveFeed = field(init=False)
    pacer: EventPacer = field(default_factory=EventPacer)
    request_pace: RequestPace = field(init=False)
    limits: RateLimits = field(init=False)
    shared_uses: SharedUses = field(init=False)
    counts: RequestCounts = field(init=False)
    websockets: WebSocketLimits = field(init=False)
    sessions: KeptSessions[Any] = field(default_factory=KeptSessions)  # realtime sessions, which routes define
    bodies: BodyBudget = field(init=False)
    refused_keys: RefusedKeys = field(default_factory=lambda: RefusedKeys(time.monotonic))
    store: ConversationStore = field(default_factory=MemoryStore)
    # responses that only their connection can continue
    unstored: MemoryStore = field(default_factory=lambda: MemoryStore(Limits(records=10_000)))
    saves: Saves = field(default_factory=Saves)

    def __post_init__(self) -> None:
        self.prompts = Prompts(
            self.text, lambda: self.info, strict_tools=self.settings.strict_tools, check_model=self.check_model
        )
        self.grammars = GrammarChecker(self.text.vocabulary)
        self.idempotent = IdempotentRequests(self.registry)
        self.warm = WarmRequests(self.client, self.registry)
        defaults = {limit: getattr(self.settings, limit) for limit in LIMIT_OPTIONS}
        self.limits = RateLimits(defaults, time.monotonic)
        self.shared_uses = SharedUses(self.limits, self.admission, time.monotonic)
        self.client.uses.attach(self.shared_uses)
        self.counts = RequestCounts(self.admission, self.limits, self.shared_uses)
        self.websockets = WebSocketLimits(self.settings.max_websockets, time.monotonic)
        self.bodies = BodyBudget(self.settings.max_body_memory, self.settings.max_tenant_body_memory)
        self.request_pace = RequestPace(lambda: self.counts.running > 0)
        self.live = LiveFeed(self.client, self.metrics.recent, lambda: self.draining)

    @property
    def info(self) -> ModelInfo:
        """Return the loaded model. Raises `ApiError` (503) before it is loaded, and if no engine will be started."""
        if (model := self.client.model) is None or not self.client.accepts_requests:
            is_loading = self.client.state is EngineState.LOADING
            message = f"the model is loading ({self.client.loading.stage})" if is_loading else ENGINE_UNAVAILABLE
            raise ApiError(503, message, code="engine_unavailable", headers={"Retry-After": "2"})
        return model

    def admit(
        self, tenant: Tenant, requested: ServiceClass | None, tokens: int = 0, choices: int = 1, requests: int = 1
    ) -> ServiceClass:
        """Return the class in which a request of `tenant` may wait: the requested one, else standard or the highest
        that the tenant may use.

        Raises `ApiError` while the server stops (503), for a class that the tenant may not use (403), or if a limit is
        reached (429, 503). Called before expensive work for a request, and again when it is queued.
        """
        if requested is None:
            requested = ServiceClass.STANDARD if tenant.may(ServiceClass.STANDARD) else tenant.highest_class
        try:
            self._check(tenant, requested, tokens, choices, requests)
        except ApiError as error:
            self.metrics.count_refusal(tenant, requested, error.code or "other")
            raise
        return requested

    def _check(self, tenant: Tenant, requested: ServiceClass, tokens: int, choices: int, requests: int) -> None:
        self.check_restored()
        if self.draining and not self.hands_over:
            raise ApiError(503, "the server is stopping", code="server_shutdown", headers={"Retry-After": "5"})
        self.check_tier(tenant, requested)
        about_to_queue, taken = self.prompts.tokenize_queue.pending, self.client.uses.slots_taken
        self.counts.check(tenant, requested, tokens, choices, requests, about_to_queue, self._slots, taken)

    def check_tier(self, tenant: Tenant, service_class: ServiceClass) -> None:
        """Raise `ApiError` (403) for a class that the tenant may not use."""
        if not tenant.may(service_class):
            message = f"this key may only use the service tiers {', '.join(tenant.tiers)}"
            raise ApiError(403, message, param="service_tier", code="tier_not_allowed")

    def check_loaded(self) -> None:
        """Raise `ApiError` (503) before the model is loaded, and if no engine will be started."""
        _ = self.info

    def check_restored(self) -> None:
        """Raise `ApiError` (503) before the model is loaded and the answers of an earlier process are restored."""
        _ = self.info
        if self.registry.awaited and not (self.state_file is not None and self.state_file.took_over):
            raise ApiError(
                503,
                f"{len(self.registry.awaited)} answers of an earlier process are being restored",
                code="engine_unavailable",
                headers={"Retry-After": "1"},
            )

    def check_model(self, name: str | None) -> None:
        """Raise `ApiError` (404) if `name` is not the served model. None selects the served model."""
        if name is not None and name != self.settings.model_name:
            raise ApiError(
                404,
                f"the model {name[:200]!r} does not exist; the served model is {self.settings.model_name!r}",
                param="model",
                code="model_not_found",
            )

    async def generate(self, request: GenerationRequest, tenant: Tenant, intake: IntakeTimeline) -> Generation:
        """Render, tokenize and queue a request, and register its stream. Raises `ApiError`.

        Its deadline counts from its arrival. A cancellation after the request is queued is that of a reader who leaves.
        """
        self.check_model(request.model)
        service_class = self.admit(tenant, request.service_class)
        prompt = await self.prompts.prepare(request, Caller(tenant.id, service_class, intake))
        await self._check_constraints(request, prompt, tenant, intake)
        generation = self._start(request, prompt, tenant, service_class, intake)
        if self.state_file is not None and request.origin is not None:
            try:
                await self.state_file.journal.settle()  # no client gets an id that a restart does not know
            except BaseException:
                generation.on_reader_left()
                raise
        return generation

    async def generate_batch(
        self, requests: Sequence[GenerationRequest], tenant: Tenant, intake: IntakeTimeline
    ) -> PromptBatch:
        """Do as `generate` for several prompts of one request, all or none of which are started. Raises `ApiError`."""
        first = requests[0]
        self.check_model(first.model)
        choices = first.n * len(requests)
        service_class = self.admit(tenant, first.service_class, choices=choices, requests=len(requests))
        prompts: list[PreparedPrompt] = []
        for request in requests:
            prompts.append(await self.prompts.prepare(request, Caller(tenant.id, service_class, intake)))
            await asyncio.sleep(0)
        await self._check_constraints(first, prompts[0], tenant, intake)
        tokens = sum(len(prompt.ids) for prompt in prompts)
        self.admit(tenant, service_class, tokens, choices, len(requests))
        parts: list[Generation] = []
        try:
            for request, prompt in zip(requests, prompts, strict=True):
                await asyncio.sleep(0)
                copy = IntakeTimeline(intake.arrived_at, intake.client_id)
                copy.body_received(intake.received_at)
                parts.append(self._start(replace(request, encoder=None), prompt, tenant, service_class, copy))
        except BaseException:  # including the cancellation of a client that has left
            for part in parts:
                part.cancel()
            raise
        assert first.encoder is not None
        tier = TIER_OF_CLASS[service_class]
        head = AnswerHead(self.settings.model_name, tier, self.text, tokens, fingerprint=self.info.fingerprint)
        return PromptBatch(parts, first.encoder(head))

    async def _check_constraints(
        self, request: GenerationRequest, prompt: PreparedPrompt, tenant: Tenant, intake: IntakeTimeline
    ) -> None:
        """Compile a request's grammar, and give the engine the vocabulary that constraints need. Raises `ApiError`."""
        if prompt.grammar is not None:
            began = time.monotonic()
            await self.grammars.check(prompt.grammar, tenant.id, constraint_param(request))
            intake.record_wait(began, time.monotonic(), WaitReason.GRAMMAR)
        if prompt.grammar is not None or prompt.reasoning_limit is not None:
            self.client.use_vocabulary(await self.grammars.vocabulary())

    def _start(
        self,
        request: GenerationRequest,
        prompt: PreparedPrompt,
        tenant: Tenant,
        service_class: ServiceClass,
        intake: IntakeTimeline,
    ) -> Generation:
        self.admit(tenant, service_class, len(prompt.ids), request.n)
        queued = prompt.engine_request(request, self.text, self.info, tenant, service_class, intake)
        try:
            self.client.check(queued)  # before anything is created from its tokens
        except RequestRefused as error:
            self.metrics.count_refusal(tenant, service_class, error.code)
            names = request.parameter_names
            if request.max_tokens is None:  # a limit that the client has not set
                names = {**names, "max_tokens": "the greatest length of the answer"}
            raise with_names(error, names) from None
        except EngineUnavailable:
            raise ApiError(503, ENGINE_UNAVAILABLE, code="engine_unavailable", headers={"Retry-After": "2"}) from None
        log = StreamLog(queued.id, self.registry.epoch, tenant.owner)
        note = None
        if request.origin is not None:
            note = Note.of(queued, request.origin, log, tenant, self.info.fingerprint, self.text.digest)
            queued = self.noted(queued, note)
        generation = self.generation(queued, request, prompt, log, intake)
        sink: Sink = generation.handle_event
        if self.state_file is not None and note is not None:
            sink = self.state_file.journal.begin(Entry.of(queued, note), sink, is_exact=self.info.is_exact)
        self.submit(generation, sink, tenant, request.observer)
        return generation

    @property
    def keeps_origins(self) -> bool:
        """Return whether an answer can go on after the end of this process, with the request of its client."""
        return self.state_file is not None or self.client.adoptions.is_possible

    def noted(self, queued: Request, note: Note) -> Request:
        """Return a request with its note if another process can adopt it."""
        return noted(queued, note, self.metrics.count_without_note) if self.client.adoptions.is_possible else queued

    def generation(
        self,
        queued: Request,
        request: GenerationRequest,
        prompt: PreparedPrompt,
        log: StreamLog,
        intake: IntakeTimeline,
    ) -> Generation:
        """Return the generation of a request for the engine, which `submit` sends."""
        model = self.settings.model_name, self.info.fingerprint
        return assemble(queued, request, prompt, log, intake, self.client, self.text, model)

    def submit(self, generation: Generation, sink: Sink, tenant: Tenant, observer: Observer | None = None) -> None:
        """Register the stream of a request, and send it to the engine. sink: is called with its events."""
        self.register(generation, tenant, observer)
        self.client.submit(generation.request, sink)

    def register(self, generation: Generation, tenant: Tenant, observer: Observer | None) -> None:
        """Register the stream of a request that an engine has, or is about to get."""
        request = generation.request
        batch = self.metrics.token_batch(request.service_class, tenant.name)
        generation.connect(lambda one: self.counts.start(one.request), partial(self._ended, observer), batch.add_token)
        self.counts.enter(tenant, request)
        if request.is_paused:  # before a restart, or in another API process
            self.counts.change(request, request, has_started=False)
            generation.change(request, batch.add_token, self.settings.max_pause)
        self.registry.add(generation)
        if observer is not None:
            observer.queued(generation)
        generation.start_deadline_timer()

    async def drain(self, seconds: float, is_hurried: Callable[[], bool] = lambda: False) -> None:
        """Refuse new requests, let requests with readers finish for `seconds` or until `is_hurried()`, then end the
        rest with an error, except for answers, paused or unread, that the next process continues from the store.
        """
        self.draining = True
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not is_hurried():
            if all(each.has_no_reader or each.request.is_paused for each in self.registry.live()):
                break
            await asyncio.sleep(0.05)
        for generation in self.registry.live():
            if not ((generation.has_no_reader or generation.request.is_paused) and self._is_stored(generation)):
                generation.fail("the server stopped before the answer was complete", "server_shutdown")

    def _is_stored(self, generation: Generation) -> bool:
        """Return whether the store has a request, from which the next process continues it."""
        return self.state_file is not None and self.state_file.journal.has(generation.log.id)

    async def loaded(self) -> ModelInfo:
        """Wait until requests are served, those with formats too. Raises `EngineUnavailable` with a one-line reason."""
        info = await self.client.ready()
        await self.grammars.started()
        return info

    def begin_drain(self) -> None:
        """Refuse new requests, or leave them to a successor if there is one."""
        if not self.draining:
            self.hands_over = self.has_successor()
            self.draining = True

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
        if self.state_file is not None:
            self.state_file.close()

    @property
    def _slots(self) -> int:
        return max(1, self.client.slots)

    def _ended(self, observer: Observer | None, generation: Generation) -> None:
        has_started = generation.timing.started is not None
        self.counts.end(generation.request, generation.completion_tokens, has_started=has_started)
        self._meter(generation)
        if self.state_file is not None:
            self.state_file.journal.end(generation.log)
        self.registry.finish(generation)
        self.metrics.count_end(generation)
        if observer is not None:
            observer.ended(generation)

    def _meter(self, generation: Generation) -> None:
        """Record the usage of a request. The store holds the row of an answer that it will restore as ended."""
        if self.metering is None:
            return
        name = self.metrics.name_of(generation.request.tenant)
        row = self.metering.row_of(generation, name, self.settings.model_name, self._slots)
        if self.state_file is not None and self._is_stored(generation):
            self.metering.record_held(row, self.state_file.usage_rows)
        else:
            self.metering.record(row)
