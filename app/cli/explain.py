"""`carousel explain ID`: print where the time of a request went."""

from __future__ import annotations

import asyncio
import json
import math
from typing import Any
from urllib.parse import quote

from app.admission.tenants import KEY_CHARACTERS, is_valid_key
from app.cli.bench.client import ServerUnreachable, Target, request_json
from app.settings import SettingsError

BAR_CHARACTERS = 40  # width of the bars
# The pages use the same texts (static/js/labels.js).
CAUSE_TEXTS = {
    "step": "waiting for the next step",
    "prompt": "prompt computed by the first choice",
    "order": "other requests first",
    "slots": "all slots occupied",
    "pages": "KV cache full",
    "budget": "token budget of the step used up",
    "pace": "prompt read slowly, for the pace of running answers",
    "fairness": "another tenant's turn",
    "deadline": "earlier deadline of another request",
    "batch": "batch not complete",
    "restart": "engine restarted",
    "client": "paused by its client",
    "trial": "paused while a request that may have ended an engine was tried alone",
    "body": "request body incomplete",
    "texts": "long texts of other requests tokenized first",
    "grammar": "grammar of the answer being compiled",
    "disk": "conversation being read from disk",
    "reader": "complete, not yet read by the client",
}
MOVE_TEXTS = {"died": "died", "drained": "was drained", "busy": "had no slot"}
MECHANISM_TEXTS = {
    "swap": "pages kept in host memory",
    "partial": "pages kept while memory lasts",
    "recompute": "to be recomputed",
}
CACHE_TEXTS = {
    "evicted": "evicted",
    "host": "evicted from host memory",
    "disk": "computed again, which took less time than reading them from disk",
    "share": "given up, beyond the share of conversations that are kept",
    "expired": "given up, after the time for which conversations are kept",
    "copy": "computed again, which took less time than copying them from host memory",
    "logprobs": "computed again, for the log-probabilities of the prompt",
    "unknown": "this engine had no earlier request of this client",
}


def explain(url: str, request_id: str, api_key: str | None) -> str:
    """Query the server for a request's timeline and return it as text. Raises `ServerUnreachable`, and `SettingsError`
    for an invalid URL or key.
    """
    target = Target.parse(url)
    if not is_valid_key(api_key or ""):
        raise SettingsError(f"an API key must be {KEY_CHARACTERS}")
    path = f"/v1/requests/{quote(request_id, safe='', errors='surrogateescape')}"
    account = asyncio.run(request_json(target, "GET", path, key=api_key))
    try:
        return "\n".join(timeline_lines(account))
    except (LookupError, TypeError, ValueError, OverflowError):
        raise ServerUnreachable(
            f"{target.url}{path} is not a request's timeline: is that the address of a server?"
        ) from None


def timeline_lines(account: dict[str, Any]) -> list[str]:
    """Return the timeline as lines of text."""
    wall = account["wall_ms"]
    text = [
        f"Request {account['id']} of class {account['class']}: {account['state']} after {_time(wall)}",
        f"{account['prompt_tokens']} prompt tokens ({account['cached_tokens']} of them cached), "
        f"{account['completion_tokens']} generated",
    ]
    if account["cache"] is not None:
        text.append(cache_line(account["cached_tokens"], account["prompt_tokens"], account["cache"]))
    for choice in account["choices"]:
        text.append(f"\nChoice {choice['index']}" if len(account["choices"]) > 1 else "")
        if choice["drafts"] is not None:
            text.append(drafts_line(choice["drafts"]))
        for interval in choice["intervals"]:
            first = round(BAR_CHARACTERS * interval["began_ms"] / wall) if wall else 0
            last = round(BAR_CHARACTERS * (interval["began_ms"] + interval["ms"]) / wall) if wall else 0
            bar = " " * first + "█" * max(1, last - first)
            text.append(
                f"{_time(interval['began_ms']):>9} +{_time(interval['ms']):<9} {interval['phase']:9}"
                f"{bar:{BAR_CHARACTERS + 2}}{_explanation(interval)}".rstrip()
            )
    return text


def cache_line(cached: int, prompt: int, note: dict[str, Any]) -> str:
    """Return what the cache had of a prompt, and why not more."""
    text = f"{cached:,} of {prompt:,} prompt tokens were in the cache"
    code, kept = note["reason"], note["kept_seconds"]
    if cached and kept is not None:
        text += f", kept for {max(1, math.floor(kept)):,} s"
    if code == "unknown":
        return text if cached else f"{text}: {CACHE_TEXTS[code]}"
    if code is not None:
        beneficiary = f" for a request of class {note['by']}" if note["by"] else ""
        text += f"; {note['expected_tokens'] - cached:,} more: {CACHE_TEXTS.get(code, code)}{beneficiary}"
    if note["differs_at"] is None:
        return text
    if note["continues"] is None:
        return f"{text}; the prompt differs from that of an earlier request after token {note['differs_at']:,}"
    before, after = (json.dumps(note[name], ensure_ascii=False) for name in ("before", "after"))
    differs = f"the prompt differs from that of request {note['continues']} at token {note['differs_at']:,}"
    return f"{text}; {differs}: {before} became {after}"


def drafts_line(drafts: dict[str, Any]) -> str:
    """Return how many tokens the steps of a choice yielded, and which drafts became tokens."""
    tokens, steps = drafts["tokens"], drafts["steps"]
    accepted = ", ".join(f"{source} {number:,}" for source, number in drafts["accepted"].items() if number)
    mean = f"{tokens / steps:.1f} a step; " if steps else ""
    return f"decode: {tokens:,} tokens in {steps:,} steps ({mean}{accepted or 'no draft was right'})"


def _explanation(interval: dict[str, Any]) -> str:
    if interval.get("left_engine") is not None:
        return _move(interval)
    code: str = interval.get("cause", "")
    cause = CAUSE_TEXTS.get(code, code)
    if interval["phase"] != "paused" or code == "client":
        return cause
    beneficiary = f"for a request of class {interval['by']}" if interval["by"] else "as memory ran short"
    kept = MECHANISM_TEXTS[interval["mechanism"]]
    return f"{beneficiary}, {kept}: {interval['why']}" + (f"; {cause}" if cause else "")


def _move(interval: dict[str, Any]) -> str:
    """Return which engine the request has left and why, and which one continued the answer."""
    reason = MOVE_TEXTS[interval["move_reason"]]
    activity = "while computing it" if interval["was_computing"] else "while it waited there"
    successor = interval["next_engine"]
    return f"engine {interval['left_engine']} {reason} {activity}" + (
        "" if successor is None else f"; it went on in engine {successor}"
    )


def _time(milliseconds: float) -> str:
    return f"{milliseconds / 1000:.2f} s" if milliseconds >= 1000 else f"{milliseconds:.1f} ms"
