"""Options of `carousel engine`: those of a listening process, and those of every engine."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from app.options import check_values, merge_sources, options_of, take_engine
from app.remote_settings import TokenFile
from app.settings import LogFormat, LogLevel, Revision, SettingsError
from engine.config import EngineConfig
from engine.network import Address
from engine.options import FINITE, Option, at_least

LISTENING = "Listening engine"  # group of options


class EngineSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Options of an engine that listens for API processes. Immutable."""

    listen: Annotated[
        Address,
        Option(
            LISTENING,
            "address to listen on once the model is loaded, HOST:PORT; 0.0.0.0 is every interface, port 0 a free one",
            "none, required",
            kind=str,
        ),
    ]
    token_file: TokenFile
    tls_cert: Annotated[
        str | None, Option(LISTENING, "file with the certificate chain that encrypts connections", "no encryption")
    ] = None
    tls_key: Annotated[
        str | None, Option(LISTENING, "file with the private key of --tls-cert", "in the file of --tls-cert")
    ] = None
    orphan_grace: Annotated[
        float,
        Option(
            LISTENING,
            "seconds for which requests go on after the connection to their API process is lost",
            bounds=(at_least(0), FINITE),
        ),
    ] = 30.0
    drain_seconds: Annotated[
        float,
        Option(
            LISTENING,
            "seconds for running requests to finish, or to move to other engines, when the engine stops",
            bounds=(at_least(0), FINITE),
        ),
    ] = 30.0
    revision: Revision = None
    model_warning: str = ""  # reason for which the bundled model is served instead of the default one
    log_level: LogLevel = "info"
    log_format: LogFormat = "text"
    engine: EngineConfig


ENGINE_OPTIONS = options_of(EngineSettings)


def resolve_engine(
    flags: Mapping[str, Any], environment: Mapping[str, str] = os.environ, *, download: Any = None
) -> EngineSettings:
    """Return settings from parsed flags, the environment, and the file that they name. Raises `SettingsError`, and
    `ConfigError`. For `download` see `app.options.resolve`.
    """
    values = merge_sources(ENGINE_OPTIONS, flags, environment)
    if "tenants" in values:
        raise SettingsError("tenants is not an option of `carousel engine`: API processes know their tenants")
    for key, meaning in (("listen", "the address to listen on"), ("token_file", "the file with the engine's token")):
        if values.get(key) is None:
            raise SettingsError(f"{key} is required: {meaning}")
    if values.get("tls_key") is not None and values.get("tls_cert") is None:
        raise SettingsError("tls_key requires tls_cert, the file with its certificate")
    check_values(ENGINE_OPTIONS, values)
    values["listen"] = Address.parse(values["listen"], "listen")
    _, engine = take_engine(ENGINE_OPTIONS, values, download)
    return EngineSettings(engine=engine.validate(), **values)
