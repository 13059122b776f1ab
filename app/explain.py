"""`carousel explain ID`: where the time of a request went, in a terminal."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import quote

from app.bench.client import NoServer, Target, ask_json
from app.settings import SettingsError
from app.tenants import SENT, can_be_sent

WIDTH = 40  # of the bars, in characters
CAUSES = {
    "step": "for the next step",
    "prompt": "the first choice read the prompt for all",
    "order": "others came first",
    "slots": "every slot was taken",
    "pages": "the memory for its text was taken",
    "budget": "running answers kept their pace first",
    "fairness": "others of its class had had less",
    "deadline": "an earlier deadline went first",
    "batch": "a batch was not complete",
    "restart": "the engine had died, and another one started",
    "body": "it had not all arrived",
    "texts": "long texts of others were tokenised first",
    "reader": "it was complete; its reader had not taken it all",
}
KEPT = {
    "swap": "its pages kept in host memory",
    "partial": "its pages kept while there was memory",
    "recompute": "to be computed again",
}


def explain(url: str, request_id: str, api_key: str | None) -> str:
    """Ask the server for its account. Raises `NoServer`, and `SettingsError` for a url or a key that is none."""
    target = Target.parse(url)
    if not can_be_sent(api_key or ""):
        raise SettingsError(f"an API key must be {SENT}")
    path = f"/v1/requests/{quote(request_id, safe='', errors='surrogateescape')}"
    account = asyncio.run(ask_json(target, "GET", path, key=api_key))
    try:
        return "\n".join(lines(account))
    except (LookupError, TypeError, ValueError, OverflowError):
        raise NoServer(f"{target.url}{path} is no account of a request: is that the address of a server?") from None


def lines(account: dict[str, Any]) -> list[str]:
    """The account as text."""
    wall = account["wall_ms"]
    text = [
        f"Request {account['id']} of class {account['class']}: {account['state']} after {_time(wall)}",
        f"{account['prompt_tokens']} prompt tokens ({account['cached_tokens']} of them cached), "
        f"{account['completion_tokens']} generated",
    ]
    for choice in account["choices"]:
        text.append(f"\nChoice {choice['index']}" if len(account["choices"]) > 1 else "")
        for interval in choice["intervals"]:
            first = round(WIDTH * interval["began_ms"] / wall) if wall else 0
            last = round(WIDTH * (interval["began_ms"] + interval["ms"]) / wall) if wall else 0
            bar = " " * first + "█" * max(1, last - first)
            text.append(
                f"{_time(interval['began_ms']):>9} +{_time(interval['ms']):<9} {interval['phase']:9}"
                f"{bar:{WIDTH + 2}}{_words(interval)}".rstrip()
            )
    return text


def _words(interval: dict[str, Any]) -> str:
    given: str = interval.get("cause", "")
    cause = CAUSES.get(given, given)
    if interval["phase"] != "paused":
        return cause
    whom = f"for a request of class {interval['by']}" if interval["by"] else "as memory ran short"
    kept = KEPT[interval["mechanism"]]
    return f"{whom}, {kept}: {interval['why']}" + (f"; {cause}" if cause else "")


def _time(milliseconds: float) -> str:
    return f"{milliseconds / 1000:.2f} s" if milliseconds >= 1000 else f"{milliseconds:.1f} ms"
