"""`carousel explain ID`: where the time of a request went, in a terminal."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any
from urllib.parse import quote

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


class NoAccount(Exception):
    """The server does not tell; the message says why, in a line."""


def explain(url: str, request_id: str, api_key: str | None) -> str:
    """Ask the server for its account. Raises `NoAccount`."""
    if "://" not in url:  # as fingers type it
        url = f"http://{url}"
    asked = urllib.request.Request(f"{url.rstrip('/')}/v1/requests/{quote(request_id, safe='')}")
    if api_key:
        asked.add_header("Authorization", f"Bearer {api_key}")
    try:
        with urllib.request.urlopen(asked, timeout=10) as response:
            account: dict[str, Any] = json.load(response)
    except urllib.error.HTTPError as error:
        raise NoAccount(_reason(error)) from None
    except (OSError, ValueError) as error:
        raise NoAccount(f"no answer from {url}: {getattr(error, 'reason', error)}") from None
    return "\n".join(lines(account))


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


def _reason(error: urllib.error.HTTPError) -> str:
    try:
        return str(json.load(error)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"the server answered {error.code}"
