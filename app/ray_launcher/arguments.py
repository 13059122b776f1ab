"""Arguments of the application in a Ray cluster, and the options of its processes. Independent of Ray."""

from __future__ import annotations

import hashlib
from typing import Annotated, Any, Literal

import msgspec

from app.engine_options import ENGINE_OPTIONS
from app.options import OPTIONS, Options, check_values
from app.remote_settings import DEFAULT_RAY_NAME, is_service_name
from engine.errors import ConfigError

# Options that the launcher sets. Connections between API processes and engines are not encrypted.
SET_FOR_ENGINES = frozenset({"listen", "token_file", "tls_cert", "tls_key"})
SET_FOR_APIS = frozenset({"engines", "token_file", "engines_ca", "host", "port", "reuse_port", "replicas"})

MAX_PROCESSES = 1000
Count = Annotated[int, msgspec.Meta(ge=1, le=MAX_PROCESSES)]
Amount = Annotated[float, msgspec.Meta(ge=0)]
Placement = Literal["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"]


class EngineArguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Engines: `min` to `max` of them, the resources of each, and options of `carousel engine` by their keys.

    placement: strategy of a placement group with room for `max` engines, which is reserved for them. None: each engine
    is placed by itself, and they are spread.
    """

    min: Count = 1
    max: Count | None = None  # None: `min`
    num_cpus: Amount = 1
    num_gpus: Amount = 0
    resources: dict[str, Amount] = msgspec.field(default_factory=dict)
    placement: Placement | None = None
    options: dict[str, Any] = msgspec.field(default_factory=dict)

    @property
    def limit(self) -> int:
        """Return the largest number of engines."""
        return self.min if self.max is None else self.max

    @property
    def bundle(self) -> dict[str, float]:
        """Return the resources of each engine by Ray's names for them, without those of which it needs none."""
        amounts = {"CPU": self.num_cpus, "GPU": self.num_gpus, **self.resources}
        return {name: amount for name, amount in amounts.items() if amount}


class ApiArguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """API processes: their number, and options of `carousel serve` by their keys. The first one listens on `port`, each
    other one on the next port.
    """

    num: Count = 1
    port: Annotated[int, msgspec.Meta(ge=1, le=65535)] = 8001  # 8000 is that of Ray Serve
    host: str = "0.0.0.0"
    num_cpus: Amount = 1
    options: dict[str, Any] = msgspec.field(default_factory=dict)


class Arguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Arguments of the application. apis: their number alone stands for its defaults. name: of the service, in
    `--engines ray://auto/NAME`.
    """

    model: str
    name: str = DEFAULT_RAY_NAME
    engines: EngineArguments = msgspec.field(default_factory=EngineArguments)
    apis: ApiArguments | Count = 1

    @property
    def api(self) -> ApiArguments:
        """Return the arguments of API processes."""
        return ApiArguments(num=self.apis) if isinstance(self.apis, int) else self.apis

    @property
    def engine_values(self) -> dict[str, Any]:
        """Return the options of each engine. On a CPU it has as many threads as the actor has cores."""
        threads = {} if self.engines.num_gpus else {"threads": max(1, int(self.engines.num_cpus))}
        return threads | self.engines.options

    @property
    def generation(self) -> str:
        """Return a name of all that processes are started with; a change of it replaces them."""
        reserved = self.engines.limit if self.engines.placement else None
        fixed = msgspec.structs.replace(self.engines, min=1, max=reserved)
        parts = [self.model, fixed, msgspec.structs.replace(self.api, num=1)]
        return hashlib.sha256(msgspec.json.encode(parts, order="deterministic")).hexdigest()[:8]


def parse_arguments(args: dict[str, Any]) -> Arguments:
    """Return the arguments that a file for `serve deploy` has under `args`. Raises `ConfigError`."""
    try:
        arguments = msgspec.convert(args, Arguments)
    except msgspec.ValidationError as error:
        raise ConfigError(f"args of the Ray application: {error}") from None
    if not is_service_name(arguments.name):
        raise ConfigError(f"name must be letters, digits, _ and -, at most 63, got {arguments.name!r}")
    if arguments.engines.limit < arguments.engines.min:
        raise ConfigError(f"engines.max must be at least engines.min, got {arguments.engines.limit}")
    if arguments.engines.placement and not arguments.engines.bundle:
        raise ConfigError("engines.placement needs engines with resources, such as engines.num_cpus")
    if (last := arguments.api.port + arguments.api.num - 1) > 65535:
        raise ConfigError(f"apis.port must leave room for {arguments.api.num} ports, but the last one would be {last}")
    _check("engines", arguments.engines.options, ENGINE_OPTIONS, SET_FOR_ENGINES)
    _check("apis", arguments.api.options, tuple(each for each in OPTIONS if not each.engine), SET_FOR_APIS)
    return arguments


def _check(kind: str, values: dict[str, Any], options: Options, reserved: frozenset[str]) -> None:
    known = {option.key for option in options}
    for key in values:
        if key in reserved:
            raise ConfigError(f"{kind}.options.{key} cannot be given: the launcher sets it")
        if key not in known:
            raise ConfigError(f"{kind}.options.{key} is not an option of these processes")
    check_values(options, values)
