"""Options of a server with engines elsewhere, and those that it shares with `carousel engine`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec

from engine.errors import ConfigError
from engine.network import Address
from engine.options import Option, between

DNS_SCHEME, RAY_SCHEME = "dns://", "ray://"
DEFAULT_RAY_NAME = "carousel"
MAX_API_PROCESSES = 64
ENGINES = "Engines on other machines"  # group of options

TokenFile = Annotated[
    str | None,
    Option(
        ENGINES,
        "file with the token that API processes and engines share, 16 to 1024 characters, accessible to its owner only",
        "none",
    ),
]


@dataclass(frozen=True, slots=True)
class DnsName:
    """Name that stands for the addresses of all engines, and their port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{DNS_SCHEME}{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class RayService:
    """Ray cluster of this machine, and the name of the service there, which has a directory of its engines."""

    cluster: str  # address of the cluster's control service, or auto
    name: str

    def __str__(self) -> str:
        return f"{RAY_SCHEME}{self.cluster}/{self.name}"


Engines = tuple[Address, ...] | DnsName | RayService


class RemoteSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Engines that this server uses in place of one that it starts, and the processes that use them."""

    api_processes: Annotated[
        int,
        Option(
            "Network",
            "processes on this machine that serve the port together and share the engines, where one is busy with "
            "connections and texts; each has a store of its own",
            bounds=(between(1, MAX_API_PROCESSES),),
        ),
    ] = 1
    engines: Annotated[
        Engines | None,
        Option(
            ENGINES,
            "addresses of engines that `carousel engine` has started, HOST:PORT, separated by commas, or "
            "dns://NAME:PORT for all addresses of a name, which may change, or ray://auto for the engines of the Ray "
            "cluster of this machine; all have the same model and options of computation; options of an engine are "
            "refused here",
            "none: an engine process on this machine",
            kind=str,
        ),
    ] = None
    token_file: TokenFile = None
    engines_ca: Annotated[
        str | None,
        Option(
            ENGINES,
            "file with the certificates of the authorities for those of engines; connections are then encrypted, and "
            "an engine must prove its host name",
            "no encryption",
        ),
    ] = None


def read_engines(values: Mapping[str, Any], engine_options: Sequence[str]) -> Engines | None:
    """Return the addresses or the name of the option `engines`; None without it. Raises `ConfigError` for options that
    exclude each other.

    values: of given options. engine_options: keys of given options of an engine.
    """
    given = values.get("engines")
    if given is None:
        if needless := [key for key in ("token_file", "engines_ca") if values.get(key) is not None]:
            raise ConfigError(f"{needless[0]} requires engines, the addresses of engines that are already running")
        return None
    engines = _parse(given)
    if isinstance(engines, RayService):
        if needless := [key for key in ("token_file", "engines_ca") if values.get(key) is not None]:
            raise ConfigError(
                f"{needless[0]} cannot be combined with engines {engines}: the cluster has their token, and "
                "connections within it are not encrypted"
            )
    elif values.get("token_file") is None:
        raise ConfigError("engines requires token_file, the file with the token of these engines")
    if engine_options:
        raise ConfigError(
            f"{engine_options[0]} cannot be combined with engines: it is an option of `carousel engine`, which starts "
            "them"
        )
    if values.get("replicas") is not None:
        raise ConfigError("replicas cannot be combined with engines; each address is one engine")
    return engines


def _parse(text: str) -> Engines:
    if text.startswith(DNS_SCHEME):
        name = Address.parse(text.removeprefix(DNS_SCHEME), f"engines after {DNS_SCHEME}")
        return DnsName(name.host, name.port)
    if text.startswith(RAY_SCHEME):
        return _parse_ray(text.removeprefix(RAY_SCHEME))
    addresses = tuple(Address.parse(each.strip(), "engines") for each in text.split(","))
    if len(set(addresses)) < len(addresses):
        raise ConfigError(f"engines must be different addresses, got {text!r}")
    return addresses


def _parse_ray(text: str) -> RayService:
    cluster, slash, name = text.partition("/")
    option = f"engines after {RAY_SCHEME}"
    if cluster != "auto":
        cluster = str(Address.parse(cluster, option))
    if slash and not is_service_name(name):
        raise ConfigError(f"{option} must be auto or HOST:PORT, with /NAME for a service of that name, got {text!r}")
    return RayService(cluster, name or DEFAULT_RAY_NAME)


def is_service_name(text: str) -> bool:
    """Return whether `text` can be the name of a service in a Ray cluster."""
    return re.fullmatch(r"[A-Za-z\d][\w-]{0,62}", text) is not None


def check_api_processes(values: Mapping[str, Any]) -> None:
    """Raise `ConfigError` for options that several API processes cannot honour together. values: of given options."""
    count = values.get("api_processes") or 1
    if count > 1 and values.get("reuse_port"):
        raise ConfigError(f"reuse_port cannot be combined with api_processes ({count}), which share one socket")
