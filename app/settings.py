"""Settings: all options of the server, from the command line, the environment and a file.

A flag takes precedence over the environment (CAROUSEL_MAX_NUM_SEQS), the environment over the file (`--config
carousel.toml`), the file over the default. Names are vLLM's if vLLM has such an option. Immutable; unknown names are
refused.
"""

from __future__ import annotations

import argparse
import difflib
import math
import os
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from app.admission.keys_file import KeysFileError, read_keys_file
from app.admission.tenant_tables import TenantError, read_tables, tenants_of
from app.admission.tenants import KEY_CHARACTERS, LIMIT_OPTIONS, Tenant, is_valid_key, key_digest, tenant_of_key
from app.options import OPTIONS, Option
from app.resources import demo_model
from app.text.generation_config import AUTO_CONFIG, GENERATION_CONFIG_FILE, NO_CONFIG, config_file
from app.text.model_folder import ModelNotFound, find_folder
from engine.config import EngineConfig

# Pattern of list entries, and their description for error messages.
HOST_ENTRY = r"\*|[\w.-]+|[\da-f:]+", "name such as llm.example.com, without scheme and port"
ORIGIN_ENTRY = r"\*|[a-z][a-z\d+.-]*://([\w.-]+|\[[\da-f:]+\])(:\d+)?", "origin such as https://chat.example.com"


class SettingsError(Exception):
    """An option has an invalid value; the message names the option."""


class Settings(msgspec.Struct, frozen=True, kw_only=True, dict=True):  # dict: for the cached property
    """Options of the server and of the engine."""

    engine: EngineConfig
    model_name: str
    host: str = "127.0.0.1"
    port: int = 8000
    tenants: tuple[Tenant, ...] = ()  # from --api-key and the config file
    keys_file: str | None = None
    keys_file_tenants: tuple[Tenant, ...] = ()
    root_path: str = ""  # such as /llm
    allowed_hosts: tuple[str, ...] = ()  # in addition to the server's own names; "*": any
    allowed_origins: tuple[str, ...] = ()  # of other sites' pages; "*": any
    chat_template: str | None = None  # text of the template, not its path
    generation_config: str = AUTO_CONFIG  # or "none", or the path of a file or folder
    allow_control_tokens: bool = False  # in messages; otherwise they are plain text
    max_queue: int = 2048
    max_queue_tokens: int = 4 << 20
    max_queue_share: float = 0.5  # of both limits, for one tenant
    requests_per_minute: int | None = None  # for each tenant without its own limit; 0: no limit
    tokens_per_minute: int | None = None
    max_concurrency: int | None = None
    max_websockets: int | None = None
    max_connections: int | None = None  # None: from the limit of open files
    max_connections_per_address: int | None = None  # None: a default for addresses beyond loopback; 0: no limit
    max_body: int = 4 << 20
    websocket_idle_timeout: float = 3600.0
    resume_ttl: float = 300.0
    watchdog_timeout: float = 20.0
    restart_interval: float | None = None
    drain_timeout: float = 30.0
    operator_key: str | None = None
    metrics_key: str | None = None
    public_metrics: bool = False  # with API keys; without them /metrics needs no key
    slo_ttft: float = 1.0
    slo_itl: float = 0.1
    metering: str | None = None  # path of a file; None: no rows are written
    price_per_hour: float = 0.0
    page_title: str = "Carousel"
    page_examples: str | None = None  # one per line; None: questions that the demo model can answer
    page_system_prompt: str = ""  # for new conversations
    log_level: str = "info"
    log_format: str = "text"

    @property
    def requires_keys(self) -> bool:
        """Return whether clients need a key. With a keys file they do even while it is empty, so that revoking the last
        key admits no client.
        """
        return self.keys_file is not None or bool(self.tenants)

    @cached_property
    def tenants_by_digest(self) -> dict[str, Tenant]:
        """Return the tenants of all sources by the digests of their keys."""
        return {tenant.digest: tenant for tenant in (*self.tenants, *self.keys_file_tenants)}


# Variables with the options' prefix that are not options: positional arguments, and those of tests and benchmarks.
OTHER_VARIABLES = ("CAROUSEL_MODEL", "CAROUSEL_CONFIG", "CAROUSEL_STRICT", "CAROUSEL_CHROMIUM", "CAROUSEL_COMMIT")
KUBERNETES_PREFIXES = ("CAROUSEL_SERVICE_", "CAROUSEL_PORT_")  # set by Kubernetes for a Service called carousel


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add all options as flags. A flag that is not given is absent, so that other sources apply."""
    parser.add_argument(
        "model",
        nargs="?",
        help="a folder in Hugging Face layout or a hub name; default: the demo model [CAROUSEL_MODEL]",
    )
    parser.add_argument(
        "--config", type=Path, help="TOML file with options, named as the flags with underscores [CAROUSEL_CONFIG]"
    )
    for option in OPTIONS:
        flags = [*([f"-{option.short}"] if option.short else []), f"--{option.name}"]
        extra: dict[str, Any] = {"default": argparse.SUPPRESS, "dest": option.key}
        if option.kind is bool:
            extra["action"] = argparse.BooleanOptionalAction
        else:
            extra |= {"type": option.kind, "metavar": option.kind.__name__.upper()}
            if option.choices:
                extra |= {"choices": option.choices, "metavar": "{" + ",".join(option.choices) + "}"}
        parser.add_argument(*flags, help=f"{option.text}{_default(option)} [{option.variable}]", **extra)


def _default(option: Option) -> str:
    """Return the default of an option for its help text, unless the text already contains it."""
    fields = msgspec.structs.fields(EngineConfig if option.engine else Settings)
    default = next((field.default for field in fields if field.name == option.key), None)
    if "default" in option.text or (isinstance(default, str | None) and not default):
        return ""
    return f"; default: {('off', 'on')[default] if option.kind is bool else default}"


def resolve(flags: Mapping[str, Any], environment: Mapping[str, str] = os.environ, *, download: Any = None) -> Settings:
    """Return settings from parsed flags, the environment, and the file that they name. Raises `SettingsError`.

    `download(name)` fetches a model from the hub and returns its folder; it is called only if there is no local folder.
    """
    values = _merge_sources(flags, environment)
    model = str(values.pop("model", None) or demo_model())
    try:
        folder = find_folder(model, download)
    except ModelNotFound as error:
        raise SettingsError(str(error)) from None
    for option in OPTIONS:
        if option.choices and option.key in values and values[option.key] not in option.choices:
            raise SettingsError(f"{option.key} must be one of {', '.join(option.choices)}, got {values[option.key]!r}")
    engine_keys = {option.key for option in OPTIONS if option.engine}
    engine = EngineConfig(model=str(folder), **{key: values.pop(key) for key in engine_keys & values.keys()})
    name = values.pop("served_model_name", None) or _name(model, folder)
    values["root_path"] = _root_path(values.get("root_path", ""))
    values["allowed_hosts"] = _read_list(values, "allowed_hosts", *HOST_ENTRY)
    values["allowed_origins"] = _read_list(values, "allowed_origins", *ORIGIN_ENTRY)
    values["tenants"] = _tenants(values.pop("tenants", ()), values.pop("api_key", None))
    values["keys_file_tenants"] = read_keys(values.get("keys_file"), values["tenants"])
    if not 0 <= values.get("port", 0) <= 65535:
        raise SettingsError(f"port must be between 0 and 65535, got {values['port']}")
    limits = (
        ("max_queue", 1),
        ("max_queue_tokens", 1),
        ("max_body", 1),
        *((limit, 0) for limit in LIMIT_OPTIONS),
        ("max_connections", 1),
        ("max_connections_per_address", 0),
        ("websocket_idle_timeout", 1),
        ("resume_ttl", 0),
        ("watchdog_timeout", 5),
        ("restart_interval", 1),
        ("drain_timeout", 0),
        ("slo_ttft", 0),
        ("slo_itl", 0),
        ("price_per_hour", 0),
    )
    for key, minimum in limits:
        if not values.get(key, minimum) >= minimum:  # also refuses NaN
            raise SettingsError(f"{key} must be at least {minimum}, got {values[key]}")
    if not 0 < values.get("max_queue_share", 1) <= 1:
        raise SettingsError(f"max_queue_share must be above 0 and at most 1, got {values['max_queue_share']}")
    for key in ("restart_interval", "drain_timeout"):
        if values.get(key) == math.inf:
            raise SettingsError(f"{key} must be finite, got inf")
    digests = {tenant.digest for tenant in (*values["tenants"], *values["keys_file_tenants"])}
    check_keys(digests, values.get("operator_key"), values.get("metrics_key"))
    if values.get("price_per_hour") == math.inf:
        raise SettingsError("price_per_hour must be finite, got inf")
    if values.get("chat_template"):
        try:
            values["chat_template"] = Path(values["chat_template"]).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsError(f"chat_template: {error}") from None
    chosen = values.get("generation_config", AUTO_CONFIG)
    if chosen not in (AUTO_CONFIG, NO_CONFIG) and not config_file(folder, chosen).is_file():
        raise SettingsError(
            "generation_config must be auto, none or the path of a file or of a folder with a "
            f"{GENERATION_CONFIG_FILE}, got {chosen!r}"
        )
    return Settings(engine=engine.validate(), model_name=name, **values)


def reread_tenants(flags: Mapping[str, Any], environment: Mapping[str, str] = os.environ) -> tuple[Tenant, ...]:
    """Return the current keys and tenants of flags, environment and config file. Raises `SettingsError`."""
    values = _merge_sources(flags, environment)
    return _tenants(values.get("tenants", ()), values.get("api_key"))


def read_keys(keys_file: str | None, tenants: tuple[Tenant, ...]) -> tuple[Tenant, ...]:
    """Return the tenants of the keys file, if there is one. Raises `SettingsError`, also if it has a name or key of
    `tenants`, those of all other sources.
    """
    if keys_file is None:
        return ()
    if not keys_file:
        raise SettingsError("keys_file must be the path of a file, got an empty text")
    try:
        return read_keys_file(Path(keys_file), tenants)
    except KeysFileError as error:
        raise SettingsError(str(error)) from None


def check_keys(digests: Iterable[str], operator_key: str | None, metrics_key: str | None = None) -> None:
    """Raise `SettingsError` for an operator's or a metrics key that cannot be sent or that has a second use.

    digests: of the keys of tenants.
    """
    used = set(digests)
    for name, key in (("operator_key", operator_key), ("metrics_key", metrics_key)):
        if key is None:
            continue
        if not key or not is_valid_key(key):
            raise SettingsError(f"{name} must be {KEY_CHARACTERS}")
        if key_digest(key) in used:
            raise SettingsError(f"{name} must not be an API key, the key of a tenant or another of the server's keys")
        used.add(key_digest(key))


def _merge_sources(flags: Mapping[str, Any], environment: Mapping[str, str]) -> dict[str, Any]:
    file = flags.get("config") or environment.get("CAROUSEL_CONFIG")
    values = _without_alias(_from_file(Path(file) if file else None)) | _without_alias(_from_environment(environment))
    given = {key: value for key, value in flags.items() if value is not None and key not in ("config", "command")}
    return values | _without_alias(given)


def _name(model: str, folder: Path) -> str:
    if folder == demo_model():
        return "carousel-demo"
    return model if model.count("/") == 1 and not Path(model).is_dir() else folder.resolve().name


def _root_path(given: str) -> str:
    """Return a root path that can be prepended to other paths: empty, or with a leading and no trailing slash."""
    path = given.rstrip("/")
    if not re.fullmatch(r"(/[\w.~-]+)*", path, re.ASCII):
        raise SettingsError(f"root_path must be a path such as /llm, got {given!r}")
    return path


def _read_list(values: dict[str, Any], key: str, pattern: str, kind: str) -> tuple[str, ...]:
    """Return the comma-separated entries of an option, in the form that requests have."""
    given = values.get(key)
    listed = tuple(each.lower().rstrip("/") for each in _split_list(given))
    if given is not None and not listed:
        raise SettingsError(f"{key} must have at least one entry, got {given!r}")
    for each in listed:
        if not re.fullmatch(pattern, each, re.ASCII):
            raise SettingsError(f"{key}: {each!r} is not a valid {kind}")
    return listed


def _split_list(given: str | None) -> list[str]:
    """Return comma-separated entries."""
    return list(filter(None, map(str.strip, (given or "").split(","))))


def _tenants(named: tuple[Tenant, ...], keys: str | None) -> tuple[Tenant, ...]:
    """Return the tenants of the file, and one for each further key."""
    tenants = {tenant.digest: tenant for tenant in named}
    given = _split_list(keys)
    if keys is not None and not given:
        raise SettingsError("api_key is given but contains no key; leave the option out to admit every client")
    for number, key in enumerate(given, start=1):
        if not is_valid_key(key):
            raise SettingsError(f"api_key: key {number} must be {KEY_CHARACTERS}")
        tenants.setdefault(key_digest(key), tenant_of_key(key))
    return tuple(tenants.values())


def _without_alias(values: dict[str, Any]) -> dict[str, Any]:
    """Replace vLLM's name of memory_fraction by ours in `values` of one source."""
    alias = values.pop("gpu_memory_utilization", None)
    if alias is not None and values.setdefault("memory_fraction", alias) != alias:
        raise SettingsError(
            f"gpu_memory_utilization ({alias}) and memory_fraction ({values['memory_fraction']}) are the same option"
        )
    return values


def _from_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    by_variable = {option.variable: option for option in OPTIONS}
    values: dict[str, Any] = {"model": environment["CAROUSEL_MODEL"]} if environment.get("CAROUSEL_MODEL") else {}
    for name, value in environment.items():
        if option := by_variable.get(name):
            if name == "CAROUSEL_PORT" and "://" in value:
                raise SettingsError(
                    f"CAROUSEL_PORT is {value!r}, which Kubernetes sets for a Service called carousel; rename the "
                    "Service, or set enableServiceLinks: false"
                )
            values[option.key] = _convert(option, value, name)
        elif name.startswith("CAROUSEL_") and name not in OTHER_VARIABLES and not name.startswith(KUBERNETES_PREFIXES):
            raise SettingsError(f"{name} is not an option{_suggestion(name, by_variable)}")
    return values


def _from_file(path: Path | None) -> dict[str, Any]:
    if path is None:
        return {}
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SettingsError(f"config file {path}: {error}") from None
    by_key = {option.key: option for option in OPTIONS}
    values: dict[str, Any] = {}
    for key, value in content.items():
        if key == "model":
            values[key] = str(value)
        elif key == "tenants":
            try:
                values[key] = tenants_of(read_tables(value, "tenants"))
            except TenantError as error:
                raise SettingsError(f"config file {path}: {error}") from None
        elif key not in by_key:
            matches = _suggestion(key.replace("-", "_"), by_key)
            raise SettingsError(f"config file {path}: unknown option {key!r}{matches}")
        else:
            values[key] = _convert(by_key[key], value, f"{path}: {key}")
    return values


def _suggestion(name: str, names: Iterable[str]) -> str:
    matches = difflib.get_close_matches(name, names, 1)
    return f"; did you mean {matches[0]}?" if matches else ""


def _convert(option: Option, value: Any, where: str) -> Any:
    """Return a text from the environment or a TOML value as the option's type."""
    try:
        if option.kind is bool:
            if isinstance(value, bool):
                return value
            return {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}[value.lower()]
        kinds = (str, int) if option.kind is int else (str, int, float)
        if isinstance(value, bool) or not isinstance(value, kinds):
            raise ValueError
        return option.kind(value)
    except (ValueError, OverflowError, KeyError, AttributeError):
        raise SettingsError(f"{where} must be of type {option.kind.__name__}, got {value!r}") from None


def parse(arguments: Sequence[str], environment: Mapping[str, str] = os.environ) -> Settings:
    """Return the settings of a `serve` command line."""
    parser = argparse.ArgumentParser(prog="carousel serve", exit_on_error=False)
    add_arguments(parser)
    return resolve(vars(parser.parse_args(arguments)), environment)
