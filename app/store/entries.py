"""Records of the journal, which need no SQLite."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from app.admission.tenants import AnonymousTenant, Tenant, anonymous
from app.settings import Settings
from app.streams.stream_log import Failure, StreamLog, Usage
from engine.sent_events import SentEvents
from engine.types import FinishReason, Request, SentOutput, ServiceClass, TokenEvent


class Origin(msgspec.Struct, frozen=True):
    """Request of a client, from which its encoder and parsers are made again.

    schema: name of the class of its body. key, digest: idempotency key with the digest of route and body, if there is
    one.
    """

    schema: str
    body: bytes
    resume_seconds: float
    key: str = ""
    digest: bytes = b""


class Note(msgspec.Struct, frozen=True):
    """Everything beside a request's tokens from which another process makes its stream again. Times are Unix seconds,
    as no other clock survives a machine.

    key_digest, network: of its tenant. epoch: of the cursors into its stream.
    """

    origin: Origin
    owner: str
    key_digest: str
    network: str
    created: float
    deadline: float | None
    fingerprint: str
    vocabulary: str  # digest of the tokenizer: by another one the tokens are another text
    epoch: str
    service_class: ServiceClass  # when it was queued, which its events name also after a change

    @classmethod
    def of(
        cls, request: Request, origin: Origin, log: StreamLog, tenant: Tenant, fingerprint: str, vocabulary: str
    ) -> Note:
        """Return the note of a request that is about to be queued."""
        return cls(
            origin=origin,
            owner=log.owner,
            key_digest=tenant.digest,
            network=tenant.network if isinstance(tenant, AnonymousTenant) else "",
            created=log.created,
            deadline=None if request.deadline is None else time.time() + request.deadline - time.monotonic(),
            fingerprint=fingerprint,
            vocabulary=vocabulary,
            epoch=log.epoch,
            service_class=request.service_class,
        )

    def tenant(self, settings: Settings) -> Tenant | None:
        """Return its tenant as `tenant_of` does."""
        return tenant_of(self.key_digest, self.network, settings)


class Entry(msgspec.Struct, frozen=True):
    """Resumable request. request: as the engine received it, with its drawn seed; without its deadline. adopted_at:
    when this process adopted it from another one, in Unix seconds; 0 if its client sent it here.
    """

    request: Request
    note: Note
    adopted_at: float = 0.0

    @classmethod
    def of(cls, request: Request, note: Note, adopted_at: float = 0.0) -> Entry:
        """Return the entry of a request that an engine has, or that is about to be queued."""
        return cls(msgspec.structs.replace(request, deadline=None, note=b"", alias=""), note, adopted_at)

    @property
    def has_logprobs(self) -> bool:
        """Return whether its records have log-probabilities. These are not stored, and so its tokens are not."""
        sampling = self.request.sampling
        return sampling.logprobs is not None or sampling.prompt_logprobs is not None


def tenant_of(key_digest: str, network: str, settings: Settings) -> Tenant | None:
    """Return a tenant with its current limits; None if its key was revoked, or if keys are needed by now."""
    if key_digest:
        return settings.tenants_by_digest.get(key_digest)
    return None if settings.requires_keys else anonymous(network)


class Changed(msgspec.Struct, frozen=True):
    """State of a request that its client has changed after it was queued."""

    is_paused: bool
    service_class: ServiceClass

    def apply_to(self, entry: Entry) -> Entry:
        """Return the entry of the request in this state."""
        request = msgspec.structs.replace(entry.request, is_paused=self.is_paused, service_class=self.service_class)
        return msgspec.structs.replace(entry, request=request)


class Ended(msgspec.Struct, frozen=True):
    """End of a request: its last record, and when that was written, in Unix seconds."""

    at: float
    usage: Usage | None = None
    failure: Failure | None = None


class Token(NamedTuple):
    """Stored token. finish: reason, if it ended its choice."""

    choice: int
    id: int
    finish: FinishReason | None


class Saved(msgspec.Struct):
    """Request as the store has it, with its tokens in order of arrival."""

    entry: Entry
    end: Ended | None
    starts: int
    tokens: list[Token]

    def events(self) -> Iterator[TokenEvent]:
        """Yield the events of its tokens."""
        for token in self.tokens:
            yield TokenEvent(self.entry.request.id, token.choice, token.id, token.finish)

    def sent(self) -> SentOutput:
        """Return its tokens in order, for an engine that goes on with several choices."""
        sent = SentEvents()
        for event in self.events():
            sent.append(event)
        return sent.freeze()

    def output(self, choice: int) -> tuple[int, ...]:
        """Return the token ids of a choice."""
        return tuple(token.id for token in self.tokens if token.choice == choice)
