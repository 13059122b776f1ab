"""Note of an engine about the prefix cache: how much of a prompt it could have had, and why it has less."""

from __future__ import annotations

import enum

import msgspec


class CacheMiss(enum.StrEnum):
    """Reason for which pages of an earlier answer are not in the cache."""

    EVICTED = "evicted"  # a running request needed them
    HOST = "host"  # evicted, and then lost from host memory
    SHARE = "share"  # given up: they were beyond the share of sessions
    EXPIRED = "expired"  # given up: their session has not gone on for its time
    COPY = "copy"  # in host memory, but computing them takes less time than copying them
    DISK = "disk"  # on disk, but computing them takes less time than reading them
    LOGPROBS = "logprobs"  # not looked up, since log-probabilities of the prompt are computed
    UNKNOWN = "unknown"  # the engine has no ended answer of this owner


class CacheNote(msgspec.Struct, frozen=True, array_like=True):
    """Comparison of a prompt with the ended answer of its owner that it continues best.

    continues: request of that answer; empty if its owner is shared, as then are `before` and `after`. kept_seconds:
    since it ended. expected_tokens: full pages that are common to both. reason: why the cache has less; None: it does
    not. beneficiary: service class of the request that needed the memory, if it is known. differs_at: common tokens,
    if the answer goes on in another way; full pages of them if its owner is shared. before, after: tokens around that
    position in the answer and the prompt.
    """

    continues: str = ""
    kept_seconds: float = 0.0
    expected_tokens: int = 0
    reason: CacheMiss | None = None
    beneficiary: int | None = None
    differs_at: int | None = None
    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()


NOTHING_KNOWN = CacheNote(reason=CacheMiss.UNKNOWN)
