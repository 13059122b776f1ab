"""`carousel engine`: an engine for API processes on this or other machines, in the process of the command."""

from __future__ import annotations

import logging
import os

from app.cli.loading import LoadingBar, describe
from app.engine_client.engine_process import ENGINE_ENVIRONMENT_DEFAULTS
from app.engine_options import EngineSettings
from engine.errors import EngineError
from engine.log_queue import LogHandler
from engine.network import bind, engine_tls, read_token
from engine.server import ServerOptions, build_server

log = logging.getLogger("carousel")


def run(settings: EngineSettings, logs: LogHandler) -> int:
    """Serve until a signal. Returns the exit status. Raises `ConfigError` for a token or a certificate that cannot be
    used.
    """
    assert settings.token_file is not None
    options = ServerOptions(
        token=read_token(settings.token_file),
        tls=engine_tls(settings.tls_cert, settings.tls_key) if settings.tls_cert is not None else None,
        orphan_grace=settings.orphan_grace,
        drain_seconds=settings.drain_seconds,
        sock=bind(settings.listen),  # before the model loads, so that an address in use is an error at once
    )
    if settings.model_warning:
        log.warning("%s", settings.model_warning)
    logs.write_plain(f"Carousel engine is starting with {settings.engine.model}")
    for name, value in ENGINE_ENVIRONMENT_DEFAULTS.items():
        os.environ.setdefault(name, value)  # read when torch is imported
    try:
        with LoadingBar(logs) as bar:
            server = build_server(settings.engine, options, bar.show)
    except (EngineError, OSError) as error:
        logs.write_plain(f"carousel: {error}")
        return 1
    logs.write_plain(f"Carousel engine is ready on {server.address}  ({describe(server.info)})")
    server.serve()
    return 0
