"""The server's listening socket."""

from __future__ import annotations

import pytest

from app.cli.serve import _bind


def test_a_second_server_cannot_bind_the_same_address():
    """The second of two servers that start together fails at once, not only when the first one serves."""
    with _bind("127.0.0.1", 0) as first, pytest.raises(OSError, match="cannot listen on"):
        _bind("127.0.0.1", first.getsockname()[1])
