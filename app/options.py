"""Options from the command line, the environment and a TOML file, resolved to settings; their table in the manual.

A flag takes precedence over the environment (CAROUSEL_MAX_NUM_SEQS), the environment over the file (`--config
carousel.toml`), the file over the default. Unknown names are refused. Options are declared by the fields of
`app.settings.Settings` and `engine.config.EngineConfig`.
"""

from __future__ import annotations

import argparse
import difflib
import os
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from app.admission.body_budget import MEMORY_PER_BYTE
from app.admission.keys_file import KeysFileError, read_keys_file
from app.admission.tenant_tables import TenantError, read_tables, tenants_of
from app.admission.tenants import KEY_CHARACTERS, Tenant, is_valid_key, key_digest, tenant_of_key
from app.mcp.addresses import read_addresses
from app.remote_settings import ENGINES, check_api_processes, read_engines
from app.settings import Settings, SettingsError
from app.text.generation_config import AUTO_CONFIG, NO_CONFIG, config_file
from app.text.model_folder import FoundModel, ModelNotFound, find_default, find_model
from engine.config import EXPERIMENTS, EngineConfig
from engine.model_files.folder import GENERATION_CONFIG_FILE
from engine.options import VARIABLE_PREFIX, DeclaredOption, declared_options
from engine.placement import check_device

Options = tuple[DeclaredOption, ...]

# Variables with the options' prefix that are not options: positional arguments, and those of tests and benchmarks.
OTHER_VARIABLES = ("CAROUSEL_MODEL", "CAROUSEL_CONFIG", "CAROUSEL_STRICT", "CAROUSEL_CHROMIUM", "CAROUSEL_COMMIT")
KUBERNETES_PREFIXES = ("CAROUSEL_SERVICE_", "CAROUSEL_PORT_")  # set by Kubernetes for a Service called carousel
# Pattern of list entries, and their description for error messages.
HOST_ENTRY = r"\*|[\w.-]+|[\da-f:]+", "name such as llm.example.com, without scheme and port"
ORIGIN_ENTRY = r"\*|[a-z][a-z\d+.-]*://([\w.-]+|\[[\da-f:]+\])(:\d+)?", "origin such as https://chat.example.com"


def options_of(settings: type[msgspec.Struct]) -> Options:
    """Return the options that `settings` declares, then those of the engine, and those of rare groups at the end."""
    options = declared_options(settings) + declared_options(EngineConfig, engine=True)
    return tuple(sorted(options, key=lambda option: ("", ENGINES, EXPERIMENTS).index(_rare_group(option))))


def _rare_group(option: DeclaredOption) -> str:
    return option.group if option.group in (ENGINES, EXPERIMENTS) else ""


OPTIONS = options_of(Settings)


def add_arguments(parser: argparse.ArgumentParser, settings: type[msgspec.Struct] = Settings) -> None:
    """Add the model and all options of `settings` as arguments."""
    parser.add_argument(
        "model",
        nargs="?",
        help="a folder in Hugging Face layout, a GGUF file, a hub name (owner/name, owner/name:Q4_K_M or "
        "owner/name:FILE.gguf), or demo, the small bundled model (a folder of that name is ./demo); default: "
        "smollm2-135m-instruct, which is fetched once [CAROUSEL_MODEL]",
    )
    parser.add_argument(
        "--config", type=Path, help="TOML file with options, named as the flags with underscores [CAROUSEL_CONFIG]"
    )
    add_flags(parser, options_of(settings))


def resolve(
    flags: Mapping[str, Any],
    environment: Mapping[str, str] = os.environ,
    *,
    download: Any = None,
    settings: type[Settings] = Settings,
) -> Settings:
    """Return settings from parsed flags, the environment, and the file that they name. Raises `SettingsError`.

    `download(name, revision)` fetches a model and returns its path; it is called only if there is no local one, and
    with `has_weights=False` if engines elsewhere compute. A subclass of `Settings` adds options.
    """
    options = options_of(settings)
    values = merge_sources(options, flags, environment)
    check_values(options, values)
    given_engine = sorted(option.key for option in options if option.engine and option.key in values)
    values["engines"] = read_engines(values, given_engine)
    if values["engines"] and download is not None:
        download = partial(download, has_weights=False)
    check_api_processes(values)
    values["mcp"] = read_addresses(values.get("mcp"))
    found, engine = take_engine(options, values, download)
    name = values.pop("served_model_name", None) or found.name
    values["root_path"] = _root_path(values.get("root_path", ""))
    values["allowed_hosts"] = _read_list(values, "allowed_hosts", *HOST_ENTRY)
    values["allowed_origins"] = _read_list(values, "allowed_origins", *ORIGIN_ENTRY)
    values["tenants"] = _tenants(values.pop("tenants", ()), values.pop("api_key", None))
    values["keys_file_tenants"] = read_keys(values.get("keys_file"), values["tenants"])
    digests = {tenant.digest for tenant in (*values["tenants"], *values["keys_file_tenants"])}
    check_keys(digests, values.get("operator_key"), values.get("metrics_key"))
    if values.get("chat_template"):
        values["chat_template"] = _read_template(values["chat_template"])
    _check_generation_config(values.get("generation_config", AUTO_CONFIG))
    resolved = settings(engine=engine.validate(), model_name=name, **values)
    _check_body_memory(resolved)
    if resolved.mcp and not resolved.requires_keys:
        raise SettingsError("mcp requires api_key or keys_file: tools of MCP servers are only for clients with a key")
    check_device(resolved.engine.device, resolved.replicas)
    return resolved


def take_engine(options: Options, values: dict[str, Any], download: Any) -> tuple[FoundModel, EngineConfig]:
    """Remove model and engine options from `values`. Returns the model's path and name, and the engine's configuration.

    Adds the warning about a model that takes the default one's place. Raises `SettingsError`.
    """
    model = str(values.pop("model", None) or "")
    try:
        if model or values.get("revision") is not None:
            found = find_model(model, download, values.get("revision"))
        else:
            found, values["model_warning"] = find_default(download)
    except ModelNotFound as error:
        raise SettingsError(str(error)) from None
    engine_keys = {option.key for option in options if option.engine}
    config = {key: values.pop(key) for key in engine_keys & values.keys()}
    return found, EngineConfig(model=str(found.path), **config)


def reread_tenants(flags: Mapping[str, Any], environment: Mapping[str, str] = os.environ) -> tuple[Tenant, ...]:
    """Return the current keys and tenants of flags, environment and config file. Raises `SettingsError`."""
    values = merge_sources(OPTIONS, flags, environment)
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


def merge_sources(options: Options, flags: Mapping[str, Any], environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the given values: a flag takes precedence over a variable, a variable over the file."""
    file = flags.get("config") or environment.get("CAROUSEL_CONFIG")
    values = without_aliases(options, _from_file(options, Path(file)) if file else {})
    if environment.get("CAROUSEL_MODEL"):
        values["model"] = environment["CAROUSEL_MODEL"]
    values |= without_aliases(options, read_environment(options, environment))
    given = {key: value for key, value in flags.items() if value is not None and key not in ("config", "command")}
    model = {"model": given.pop("model")} if "model" in given else {}
    return values | model | without_aliases(options, _from_program(options, given))


def _from_program(options: Options, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of flags or keyword arguments as their options' types. Raises `SettingsError`."""
    by_key = {option.key: option for option in options}
    for key in given:
        if key not in by_key:
            raise SettingsError(f"{key} is not an option{_suggestion(key, by_key)}")
    texts = {key: os.fspath(value) if isinstance(value, os.PathLike) else value for key, value in given.items()}
    return {key: _convert(by_key[key], value, key) for key, value in texts.items()}


def _from_file(options: Options, path: Path) -> dict[str, Any]:
    """Return the values of the config file, with the model and the tenants."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
        tenants = tenants_of(read_tables(table.pop("tenants", {}), "tenants"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, TenantError) as error:
        raise SettingsError(f"config file {path}: {error}") from None
    values: dict[str, Any] = {"tenants": tenants} if tenants else {}
    if "model" in table:
        values["model"] = str(table.pop("model"))
    return values | read_table(options, table, path)


def _read_template(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"chat_template: {error}") from None


def _check_generation_config(given: str) -> None:
    """Refuse a path without such a file; the other values are names."""
    if given not in (AUTO_CONFIG, NO_CONFIG) and not config_file(given).is_file():
        raise SettingsError(
            "generation_config must be auto, none or the path of a file or of a folder with a "
            f"{GENERATION_CONFIG_FILE}, got {given!r}"
        )


def _check_body_memory(settings: Settings) -> None:
    """Refuse limits in which no body of the maximum size has room."""
    needed = MEMORY_PER_BYTE * settings.max_body
    if settings.max_tenant_body_memory < needed:
        raise SettingsError(
            f"max_tenant_body_memory must be at least {MEMORY_PER_BYTE} times max_body ({needed:,} bytes), got "
            f"{settings.max_tenant_body_memory:,}; raise it, or lower max_body"
        )
    if settings.max_body_memory < settings.max_tenant_body_memory:
        raise SettingsError(
            f"max_body_memory must be at least max_tenant_body_memory ({settings.max_tenant_body_memory:,} bytes), got "
            f"{settings.max_body_memory:,}; raise it, or lower max_tenant_body_memory"
        )


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


def parse(
    arguments: Sequence[str], environment: Mapping[str, str] = os.environ, settings: type[Settings] = Settings
) -> Settings:
    """Return the settings of a `serve` command line."""
    parser = argparse.ArgumentParser(prog="carousel serve", exit_on_error=False)
    add_arguments(parser, settings)
    return resolve(vars(parser.parse_args(arguments)), environment, settings=settings)


# Sources ------------------------------------------------------------------------------------------------------------
def add_flags(parser: argparse.ArgumentParser, options: Options) -> None:
    """Add options as flags, by group. A flag that is not given is absent, so that other sources apply."""
    groups: dict[str, Any] = {}
    for option in options:
        if option.group not in groups:
            groups[option.group] = parser.add_argument_group(option.group)
        extra: dict[str, Any] = {"default": argparse.SUPPRESS, "dest": option.key}
        if option.kind is bool:
            extra["action"] = argparse.BooleanOptionalAction
        else:
            metavar = "{" + ",".join(option.choices) + "}" if option.choices else option.kind.__name__.upper()
            extra |= {"type": option.kind, "choices": option.choices or None, "metavar": metavar}
        default = f"; default: {option.default}" if option.default else ""
        help_text = f"{option.help}{default} [{option.variable}]"
        groups[option.group].add_argument(f"--{option.name}", help=help_text, **extra)


def read_environment(options: Options, environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the values of variables. Raises `SettingsError`, also for an unknown variable with the options' prefix."""
    by_variable = {option.variable: option for option in options}
    values: dict[str, Any] = {}
    for name, value in environment.items():
        if option := by_variable.get(name):
            if name == "CAROUSEL_PORT" and "://" in value:
                raise SettingsError(
                    f"CAROUSEL_PORT is {value!r}, which Kubernetes sets for a Service called carousel; rename the "
                    "Service, or set enableServiceLinks: false"
                )
            values[option.key] = _convert(option, value, name)
        elif (
            name.startswith(VARIABLE_PREFIX)
            and name not in OTHER_VARIABLES
            and not name.startswith(KUBERNETES_PREFIXES)
        ):
            raise SettingsError(f"{name} is not an option{_suggestion(name, by_variable)}")
    return values


def read_table(options: Options, table: Mapping[str, Any], path: object) -> dict[str, Any]:
    """Return the values of the TOML file `path` with the content `table`. Raises `SettingsError`."""
    by_key = {option.key: option for option in options}
    values: dict[str, Any] = {}
    for key, value in table.items():
        if key not in by_key:
            matches = _suggestion(key.replace("-", "_"), by_key)
            raise SettingsError(f"config file {path}: unknown option {key!r}{matches}")
        values[key] = _convert(by_key[key], value, f"{path}: {key}")
    return values


def without_aliases(options: Options, values: dict[str, Any]) -> dict[str, Any]:
    """Return the values of one source with second names replaced by the options' own."""
    values = dict(values)
    for option in options:
        if option.alias_of and option.key in values:
            value = values.pop(option.key)
            if values.setdefault(option.alias_of, value) != value:
                raise SettingsError(
                    f"{option.key} ({value}) and {option.alias_of} ({values[option.alias_of]}) are the same option"
                )
    return values


def check_values(options: Options, values: Mapping[str, Any]) -> None:
    """Raise `SettingsError` for the first value outside the bounds or choices of its option."""
    for option in options:
        value = values.get(option.key)
        if value is not None and (violation := option.violation(value)):
            raise SettingsError(violation)


def manual_table(options: Options) -> str:
    """Return the tables of all options in Markdown, one for each group."""
    groups: dict[str, list[str]] = {}
    for option in options:
        default = _in_cell(option.default) or "none"
        row = f"| `--{option.name}` | {default} | {_in_cell(option.help)} |"
        groups.setdefault(option.group, []).append(row)
    tables = (
        "\n".join((f"### {group}\n\n| option | default | |\n|--|--|--|", *rows)) for group, rows in groups.items()
    )
    return "\n\n".join(tables)


def _in_cell(text: str) -> str:
    """Return `text` with flags and control tokens as code, and with the characters escaped that end a cell."""
    text = re.sub(r"(?<![\w`-])(--[a-z][a-z-]+|<\|\w+\|>|\*)", r"`\1`", text)
    return text.replace("|", "\\|")


def _suggestion(name: str, names: Iterable[str]) -> str:
    matches = difflib.get_close_matches(name, names, 1)
    return f"; did you mean {matches[0]}?" if matches else ""


def _convert(option: DeclaredOption, value: Any, where: str) -> Any:
    """Return a text from the environment, or a value of TOML or of a program, as the option's type."""
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
