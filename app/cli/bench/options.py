"""Options of `carousel bench` and their checks. Imports little, because `carousel serve` loads it too."""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from app.admission.tenants import KEY_CHARACTERS, is_valid_key
from app.settings import SettingsError

if TYPE_CHECKING:
    from app.cli.bench.workloads import Scale

WORKLOADS = ("uniform", "exponential", "sharegpt", "bursts", "mixed", "prefixes", "tenants", "overload")
TENANTS = ("flood", "calm")  # tenants of the workload `tenants`
MAX_COUNT = 1_000_000_000  # requests, tokens
MIN_RATE, MAX_RATE = 0.001, 1_000_000  # requests per second


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """Validated options of a measurement."""

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
        """Return the scale of the workload."""
        from app.cli.bench.workloads import Scale

        return Scale(self.rate, self.prompt_tokens, self.output_tokens, self.max_tokens)

    @property
    def view(self) -> dict[str, Any]:
        """Return the options that the report shows: all except keys."""
        hidden = {"api_key", "tenant_keys", "out"} | ({"share_b"} if self.url_b is None else set())
        return {name: getattr(self, name) for name in self.__struct_fields__ if name not in hidden}

    def key_of(self, tenant: str) -> str | None:
        """Return the API key that a tenant uses."""
        return self.tenant_keys.get(tenant, self.api_key)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options to the parser."""
    add, names = parser.add_argument, ", ".join(WORKLOADS)
    add("workload", nargs="?", default="uniform", help=f"workload: {names}; default: %(default)s")
    add("--url", default="http://127.0.0.1:8000", help="URL of the server; default: %(default)s")
    add("--url-b", metavar="URL", help="URL of a second server, which gets a share of the requests and is compared")
    add("--share-b", type=float, metavar="P", help="probability that a request goes to the second server; default: 0.5")
    add("--requests", type=int, default=200, metavar="N", help="number of requests; default: %(default)s")
    add("--rate", type=float, default=4.0, metavar="R", help="mean requests per second; default: %(default)s")
    add("--prompt-tokens", type=int, default=64, metavar="N", help="mean prompt length; default: %(default)s")
    add("--output-tokens", type=int, default=48, metavar="N", help="mean answer length; default: %(default)s")
    add("--max-tokens", type=int, default=512, metavar="N", help="maximum of both lengths; default: %(default)s")
    add("--max-concurrency", type=int, metavar="N", help="maximum requests in flight; others wait; default: no limit")
    add("--seed", type=int, default=0, help="seed for lengths, times and prompts; default: %(default)s")
    add("--api-key", metavar="KEY", help="API key of the requests")
    add(
        "--tenant-key",
        action="append",
        default=[],
        metavar="NAME=KEY",
        help=f"API key of a tenant of the workload 'tenants' ({', '.join(TENANTS)}); once for each",
    )
    add("--slo-ttft", type=float, default=1.0, metavar="S", help="objective for the first token; default: %(default)s")
    add("--slo-itl", type=float, default=0.1, metavar="S", help="objective for the mean gap; default: %(default)s")
    add("--out", type=Path, metavar="DIR", help="folder of the report; default: bench-WORKLOAD-TIME")
    add("--model", metavar="NAME", help="name of a served model; default: the server's first")
    add(
        "--ban-eos",
        action="store_true",
        help="ban end-of-text tokens (min_tokens) instead of ignoring them: for models that generate little text after "
        "the natural end of an answer. A step costs the server slightly more",
    )


def check(given: Mapping[str, Any]) -> Options:
    """Return the options of a parsed command line. Raises `SettingsError`, which names the invalid option."""
    workload, url_b, share_b = given["workload"], given["url_b"], given["share_b"]
    if workload not in WORKLOADS:
        raise SettingsError(f"unknown workload {workload!r}; choose one of {', '.join(WORKLOADS)}")
    for name in ("requests", "prompt_tokens", "output_tokens", "max_tokens", "max_concurrency"):
        if given[name] is not None and not 1 <= given[name] <= MAX_COUNT:
            raise SettingsError(f"{_flag(name)} must be from 1 to {MAX_COUNT:,}, got {given[name]}")
    if not MIN_RATE <= given["rate"] <= MAX_RATE:
        raise SettingsError(f"--rate must be from {MIN_RATE} to {MAX_RATE:,} requests per second, got {given['rate']}")
    for name in ("slo_ttft", "slo_itl"):
        if not 0 < given[name] < math.inf:
            raise SettingsError(f"{_flag(name)} must be a positive number of seconds, got {given[name]}")
    if share_b is not None and url_b is None:
        raise SettingsError("--share-b needs --url-b")
    if share_b is not None and not 0 < share_b < 1:
        raise SettingsError(f"--share-b must be between 0 and 1, got {share_b}")
    keys = _tenant_keys(given["tenant_key"], workload)
    for key in (given["api_key"] or "", *keys.values()):
        if not is_valid_key(key):
            raise SettingsError(f"an API key must be {KEY_CHARACTERS}")
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
            raise SettingsError(f"--tenant-key must be NAME=KEY with NAME one of {', '.join(TENANTS)}")
        keys[name] = key
    if workload != "tenants" and keys:
        raise SettingsError(f"--tenant-key needs the workload 'tenants'; {workload!r} has no tenants")
    if missing := [name for name in TENANTS if workload == "tenants" and name not in keys]:
        raise SettingsError(f"the workload 'tenants' needs --tenant-key {missing[0]}=KEY: a key identifies its tenant")
    return keys


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
