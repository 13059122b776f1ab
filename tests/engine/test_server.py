"""The engine process behind TCP, without its model: what it listens on, and how a signal ends it."""

from __future__ import annotations

import logging
import os
import signal
import socket

import pytest

from engine.errors import ConfigError
from engine.heartbeat import Heartbeat
from engine.network import Address, bind
from engine.server import EngineServer, ServerOptions
from tests.engine.api_ends import CONFIG, fake_engine


def options(host: str = "127.0.0.1", port: int = 0) -> ServerOptions:
    return ServerOptions(
        sock=bind(Address(host, port)), token="a token of an engine", tls=None, orphan_grace=1.0, drain_seconds=1.0
    )


def make_server(given: ServerOptions, build=fake_engine) -> EngineServer:
    return EngineServer(CONFIG, given, lambda *progress: None, build, Heartbeat())


@pytest.mark.parametrize(("host", "is_warned"), [("127.0.0.1", False), ("0.0.0.0", True)])
def test_a_signal_ends_an_engine(host: str, is_warned: bool, caplog: pytest.LogCaptureFixture):
    """Its port is free afterwards. One without encryption beyond loopback has logged a warning."""
    before = signal.getsignal(signal.SIGTERM)
    server = make_server(options(host))
    with caplog.at_level(logging.INFO, "carousel.engine"):
        os.kill(os.getpid(), signal.SIGTERM)
        server.serve()
    assert signal.getsignal(signal.SIGTERM) is before
    lines = [record.getMessage() for record in caplog.records]
    assert any("ends with its requests" in line for line in lines)
    assert any("without encryption" in line for line in lines) is is_warned
    socket.create_server(("127.0.0.1", server.address.port)).close()


def test_an_address_in_use_is_an_error_before_the_model_loads():
    """The builder is not called."""
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(ConfigError, match=r"listen 127.* in use"):
        make_server(options(port=taken.getsockname()[1]), build=lambda config, progress: pytest.fail("it was built"))


def test_an_engine_that_cannot_be_built_leaves_no_socket():
    """The next attempt can use the address."""

    def build(config, progress):
        raise ConfigError("device 'x' is not supported")

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    for _ in range(2):
        with pytest.raises(ConfigError, match="not supported"):
            make_server(options(port=port), build)
