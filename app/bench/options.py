"""Options of `carousel bench`: how they are written, and which of them make sense. Light: `carousel serve` loads it."""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from app.settings import SettingsError
from app.tenants import SENT, can_be_sent

if TYPE_CHECKING:
    from app.bench.workloads import Scale

WORKLOADS = ("uniform", "exponential", "sharegpt", "bursts", "mixed", "prefixes", "tenants", "overload")
TENANTS = ("flood", "calm")  # whom the workload `tenants` knows
MOST = 1_000_000_000  # requests, tokens
SLOWEST, FASTEST = 0.001, 1_000_000  # requests a second


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be measured, checked."""

    workload: str
    url: str
    url_b: str | None
    share_b: float
    requests: int
    rate: float  # requests a second
    prompt_tokens: int
    output_tokens: int
    max_tokens: int
    max_concurrency: int | None
    seed: int
    api_key: str | None
    tenant_keys: Mapping[str, str]
    slo_ttft: float  # seconds
    slo_itl: float
    out: Path | None
    model: str | None
    ban_eos: bool

    @property
    def scale(self) -> Scale:
        """As the workloads want it."""
        from app.bench.workloads import Scale

        return Scale(self.rate, self.prompt_tokens, self.output_tokens, self.max_tokens)

    @property
    def view(self) -> dict[str, Any]:
        """What a report may tell: all but the keys."""
        untold = {"api_key", "tenant_keys", "out"} | ({"share_b"} if self.url_b is None else set())
        return {name: getattr(self, name) for name in self.__struct_fields__ if name not in untold}

    def key_of(self, tenant: str) -> str | None:
        """The API key with which a tenant asks."""
        return self.tenant_keys.get(tenant, self.api_key)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command line."""
    add, names = parser.add_argument, ", ".join(WORKLOADS)
    add("workload", nargs="?", default="uniform", help=f"one of {names}; default: %(default)s")
    add("--url", default="http://127.0.0.1:8000", help="of the server; default: %(default)s")
    add("--url-b", metavar="URL", help="of a second server, which gets a share of the requests and is compared")
    add("--share-b", type=float, metavar="P", help="probability that a request goes to the second; default: 0.5")
    add("--requests", type=int, default=200, metavar="N", help="how many; default: %(default)s")
    add("--rate", type=float, default=4.0, metavar="R", help="requests a second, on average; default: %(default)s")
    add("--prompt-tokens", type=int, default=64, metavar="N", help="on average; default: %(default)s")
    add("--output-tokens", type=int, default=48, metavar="N", help="on average; default: %(default)s")
    add("--max-tokens", type=int, default=512, metavar="N", help="longest prompt, and answer; default: %(default)s")
    add("--max-concurrency", type=int, metavar="N", help="most requests in flight; others wait here. Default: no limit")
    add("--seed", type=int, default=0, help="decides lengths, times and prompts; default: %(default)s")
    add("--api-key", metavar="KEY", help="the key that requests are made with")
    add(
        "--tenant-key",
        action="append",
        default=[],
        metavar="NAME=KEY",
        help=f"of a tenant of the workload 'tenants' ({', '.join(TENANTS)}); once for each",
    )
    add("--slo-ttft", type=float, default=1.0, metavar="S", help="good: first token within; default: %(default)s")
    add("--slo-itl", type=float, default=0.1, metavar="S", help="good: mean between tokens; default: %(default)s")
    add("--out", type=Path, metavar="DIR", help="where the report goes; default: bench-WORKLOAD-TIME")
    add("--model", metavar="NAME", help="of those that the server names; default: its first")
    add(
        "--ban-eos",
        action="store_true",
        help="end-of-text tokens cannot be sampled (min_tokens) instead of being ignored: for models that write little "
        "else behind an answer's natural end. A step costs the server slightly more",
    )


def check(given: Mapping[str, Any]) -> Options:
    """The options of a parsed command line. Raises `SettingsError`, which names the one that cannot be used."""
    workload, url_b, share_b = given["workload"], given["url_b"], given["share_b"]
    if workload not in WORKLOADS:
        raise SettingsError(f"there is no workload {workload!r}; there are {', '.join(WORKLOADS)}")
    for name in ("requests", "prompt_tokens", "output_tokens", "max_tokens", "max_concurrency"):
        if given[name] is not None and not 1 <= given[name] <= MOST:
            raise SettingsError(f"{_flag(name)} must be from 1 to {MOST:,}, not {given[name]}")
    if not SLOWEST <= given["rate"] <= FASTEST:
        raise SettingsError(f"--rate must be from {SLOWEST} to {FASTEST:,} requests a second, not {given['rate']}")
    for name in ("slo_ttft", "slo_itl"):
        if not 0 < given[name] < math.inf:
            raise SettingsError(f"{_flag(name)} must be a positive number of seconds, not {given[name]}")
    if share_b is not None and url_b is None:
        raise SettingsError("--share-b needs --url-b")
    if share_b is not None and not 0 < share_b < 1:
        raise SettingsError(f"--share-b must lie between 0 and 1, not {share_b}")
    keys = _tenant_keys(given["tenant_key"], workload)
    for key in (given["api_key"] or "", *keys.values()):
        if not can_be_sent(key):
            raise SettingsError(f"an API key must be {SENT}")
    return Options(
        **{name: given[name] for name in Options.__struct_fields__ if name in given and name != "share_b"},
        share_b=(0.5 if share_b is None else share_b) if url_b is not None else 0.0,
        tenant_keys=keys,
    )


def _tenant_keys(pairs: list[str], workload: str) -> dict[str, str]:
    keys = {}
    for pair in pairs:
        name, _, key = pair.partition("=")
        if name not in TENANTS or not key:
            raise SettingsError(f"--tenant-key must be NAME=KEY with a name of {', '.join(TENANTS)}")
        keys[name] = key
    if workload != "tenants" and keys:
        raise SettingsError(f"--tenant-key is for the workload 'tenants'; {workload!r} has none")
    if missing := [name for name in TENANTS if workload == "tenants" and name not in keys]:
        raise SettingsError(f"the workload 'tenants' needs --tenant-key {missing[0]}=KEY: a tenant is known by its key")
    return keys


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
