"""Undocumented parts of libraries that this project uses. pyproject.toml bounds the versions of those libraries; when a
bound is raised, these tests name each part that has disappeared.
"""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path

import pytest
import torch
import uvicorn
from torch import Tensor
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState
from websockets.server import ServerProtocol

PYPROJECT = Path(__file__).resolve().parent.parent / "pyproject.toml"
BOUNDED = ("torch", "triton", "uvicorn", "websockets")

# Methods that app/http and app/cli override or call.
METHODS = {
    HttpToolsProtocol: """connection_made connection_lost pause_writing data_received eof_received on_message_begin
        on_url on_header on_headers_complete on_body on_message_complete handle_websocket_upgrade _should_upgrade
        _unset_keepalive_if_required""",
    WebSocketsSansIOProtocol: """connection_made connection_lost pause_writing data_received handle_events
        handle_connect handle_ping handle_pong handle_cont send_receive_event_to_app handle_parser_exception receive
        send""",
    uvicorn.Server: "capture_signals handle_exit on_tick shutdown",
    ServerProtocol: "accept receive_data data_to_send fail state",
}
# Attributes of their instances that the subclasses read or set.
HTTP_ATTRIBUTES = "client cycle flow headers loop parser scope transport url"
WEBSOCKET_ATTRIBUTES = """close_sent close_timeout close_timer conn curr_msg_data_type frames handshake_complete
    handshake_initiated loop queue read_paused transport"""
CONNECTION_ATTRIBUTES = "close_sent eof_sent events parser_exc"
SERVER_ATTRIBUTES = "_captured_signals force_exit server_state should_exit"
CYCLE_ATTRIBUTES = "disconnected keep_alive message_event more_body response_complete response_started"


def missing(instance: object, names: str) -> list[str]:
    """Return the names that are not attributes of `instance`."""
    return [name for name in names.split() if not hasattr(instance, name)]


@pytest.mark.parametrize("owner", METHODS)
def test_a_library_class_has_the_methods(owner: type) -> None:
    """A renamed method would never be called, or its call would fail only for some requests."""
    assert missing(owner, METHODS[owner]) == []


async def app(scope: object, receive: object, send: object) -> None:
    """ASGI application of the protocols under test; never called."""


async def test_instances_have_the_attributes() -> None:
    """A fresh protocol of each kind, its parser, and a server have the fields that their subclasses use."""
    config = uvicorn.Config(app, log_config=None)
    config.load()
    websocket = WebSocketsSansIOProtocol(config, ServerState(), {})
    http = HttpToolsProtocol(config, ServerState(), {})
    http.on_message_begin()
    assert missing(http, HTTP_ATTRIBUTES) == []
    assert missing(websocket, WEBSOCKET_ATTRIBUTES) == []
    assert missing(websocket.conn, CONNECTION_ATTRIBUTES) == []
    assert missing(uvicorn.Server(config), SERVER_ATTRIBUTES) == []


def test_a_cycle_sets_the_attributes() -> None:
    """The state of a request and its answer has the fields that app/http reads and sets."""
    assert set(CYCLE_ATTRIBUTES.split()) <= set(RequestResponseCycle.__init__.__code__.co_names)


def test_onednn_operators_exist() -> None:
    """kernels/linear.py packs weights and multiplies by them, with the result of the documented function."""
    weight, x = torch.randn(8, 16), torch.randn(2, 16)
    packed = torch.ops.mkldnn._reorder_linear_weight(weight)
    out: Tensor = torch.ops.mkldnn._linear_pointwise(x, packed, None, "none", [], "")
    torch.testing.assert_close(out, x @ weight.T)
    assert torch.ops.mkldnn._is_mkldnn_bf16_supported() in (True, False)


def test_memory_pools_of_failed_recordings_can_be_ended() -> None:
    """engine/execution/graphs.py ends the pool of a CUDA graph after a failed recording, as torch's own code does."""
    source = inspect.getsource(importlib.import_module("torch.cuda.memory"))
    for name in ("_cuda_endAllocateToPool", "_cuda_releasePool"):
        assert name in source


def test_triton_has_early_launch_and_the_fast_logarithm() -> None:
    """Kernels launch their successors early and hash noise with an approximate logarithm."""
    language = importlib.import_module("triton.language")
    for name in ("gdc_launch_dependents", "gdc_wait"):
        assert hasattr(language.extra.cuda, name)
    assert hasattr(importlib.import_module("triton.language.extra.libdevice"), "fast_log2f")
    assert importlib.import_module("triton").knobs.runtime.interpret in (True, False)


@pytest.mark.parametrize("package", BOUNDED)
def test_the_version_is_bounded(package: str) -> None:
    """A release that was not tested is not installed."""
    assert re.search(rf'^    "{package}>=[\d.]+,<[\d.]+[";]', PYPROJECT.read_text(), re.M)
