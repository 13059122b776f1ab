"""How a server begins to listen."""

from __future__ import annotations

import pytest

from app.launch import _bind


def test_an_address_is_one_server_s_from_the_start():
    """Not only once it serves: of two that start at the same moment one would wait for nobody for ever."""
    with _bind("127.0.0.1", 0) as first, pytest.raises(OSError, match="cannot listen on"):
        _bind("127.0.0.1", first.getsockname()[1])
