"""Sources of engines elsewhere: a list of addresses, or a name that stands for several."""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import socket
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from app.engine_client.membership import EngineSource
from app.engine_client.ray_engines import RayEngines
from app.engine_client.tcp_engine import EngineAccess, TcpEngine
from app.engine_client.transport import TransportMaker
from app.remote_settings import DnsName, RayService
from app.settings import Settings
from engine.errors import ConfigError
from engine.model_files.open_model import open_model
from engine.network import Address, api_tls, read_token

LOOK_UP_SECONDS = 5.0  # for an answer of the name service; a later one is taken at the next look


class FixedEngines:
    """Engines at a list of addresses."""

    is_fixed = True

    def __init__(self, addresses: Sequence[Address], access: EngineAccess) -> None:
        self._engines = {
            f"engine {address}": partial(TcpEngine, address=address, access=access) for address in addresses
        }
        self._access = access

    async def engines(self) -> Mapping[str, TransportMaker]:
        """Return all engines."""
        return self._engines

    def close(self) -> None:
        """Do nothing."""

    def expect(self, fingerprint: str) -> None:
        """Do as `EngineSource.expect`."""
        self._access.fingerprint = fingerprint


class DnsEngines:
    """Engines at all addresses of a name, such as that of a headless Service of Kubernetes."""

    is_fixed = False

    def __init__(self, name: DnsName, access: EngineAccess) -> None:
        self._name = name
        self._access = access
        # A thread of its own: a name service that does not answer must not occupy those of the event loop.
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="dns")
        self._look_up: Future[list[Any]] | None = None

    async def engines(self) -> Mapping[str, TransportMaker]:
        """Return an engine for each IPv4 address of the name; without any, for each IPv6 address. Raises `OSError`."""
        host, port = self._name.host, self._name.port
        if self._look_up is None:
            self._look_up = self._executor.submit(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
        try:
            answer = asyncio.wrap_future(self._look_up)
            answer.add_done_callback(_note_failure)
            async with asyncio.timeout(LOOK_UP_SECONDS):  # `wait_for` of Python 3.11 may swallow a cancellation
                found = await asyncio.shield(answer)
        except TimeoutError:
            raise OSError(f"{self._name}: the name service has not answered within {LOOK_UP_SECONDS:g} s") from None
        except OSError as error:
            self._look_up = None
            raise OSError(f"{self._name}: {error.strerror or error}") from None
        self._look_up = None
        # Of one family: an engine with two addresses would be two members, which end each other's connections.
        families = {family for family, *_ in found}
        chosen = socket.AF_INET if socket.AF_INET in families else socket.AF_INET6
        hosts = {str(resolved[0]) for family, *_, resolved in found if family == chosen}
        addresses = sorted((Address(host, port) for host in hosts), key=str)
        return {
            f"engine {address}": partial(TcpEngine, address=address, access=self._access, server_name=host)
            for address in addresses
        }

    def close(self) -> None:
        """Begin no further look-up."""
        self._executor.shutdown(wait=False, cancel_futures=True)

    def expect(self, fingerprint: str) -> None:
        """Do as `EngineSource.expect`."""
        self._access.fingerprint = fingerprint


def _note_failure(answer: asyncio.Future[list[Any]]) -> None:
    """Mark the failure of a look-up as known, so that asyncio does not log one that nothing waits for any more."""
    if not answer.cancelled():
        answer.exception()


def engine_source(settings: Settings) -> EngineSource | None:
    """Return the source of engines elsewhere; None if this server starts its own. Raises `ConfigError` for a token or
    certificates that cannot be used.
    """
    if settings.engines is None:
        return None
    tls = api_tls(settings.engines_ca) if settings.engines_ca is not None else None
    found = open_model(Path(settings.engine.model), with_vocabulary=False).config().content.get("vocab_size")
    vocab_size = found if isinstance(found, int) else None
    if isinstance(settings.engines, RayService):
        if importlib.util.find_spec("ray") is None:
            raise ConfigError(
                f"engines {settings.engines} requires the package ray: pip install '.[ray]' in the checkout"
            )
        return RayEngines(settings.engines, EngineAccess("", tls, vocab_size))
    assert settings.token_file is not None, "engines require a token"
    access = EngineAccess(read_token(settings.token_file), tls, vocab_size)
    if isinstance(settings.engines, DnsName):
        return DnsEngines(settings.engines, access)
    return FixedEngines(settings.engines, access)


def local_engines(ports: Sequence[int], token: str) -> EngineSource:
    """Return the engines that the supervisor of this process has started."""
    access = EngineAccess(token, wait_level=logging.DEBUG)  # the supervisor reports their ends
    return FixedEngines([Address("127.0.0.1", port) for port in ports], access)
