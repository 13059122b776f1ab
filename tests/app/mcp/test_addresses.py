"""Entries of the option `mcp`."""

from __future__ import annotations

import pytest

from app.mcp.addresses import MAX_SERVERS, ServerAddress, read_addresses
from engine.errors import ConfigError


def test_an_entry_is_a_url_with_or_without_a_name():
    """Without one, the server has the name of its host and port."""
    assert read_addresses(None) == ()
    assert read_addresses("https://a.example.com/mcp?x=1, files=http://[::1]:8001/mcp,") == (
        ServerAddress("a.example.com", "https://a.example.com/mcp?x=1"),
        ServerAddress("files", "http://[::1]:8001/mcp"),
    )
    assert read_addresses("http://127.0.0.1:9000/mcp")[0].name == "127.0.0.1:9000"


def test_the_secret_of_a_url_becomes_a_header():
    """A token alone is a bearer token; it is neither in the URL nor in the text of the address."""
    [token] = read_addresses("https://to%2Fken@a.example.com/mcp")
    assert (token.url, token.authorization) == ("https://a.example.com/mcp", "Bearer to/ken")
    [both] = read_addresses("https://me:secret@a.example.com/mcp")
    assert (both.name, both.authorization) == ("a.example.com", "Basic bWU6c2VjcmV0")
    assert "ken" not in repr(token) and "secret" not in repr(both)


@pytest.mark.parametrize(
    "text",
    ["", " , ", "a.example.com/mcp", "ftp://a/b", "file:///etc/passwd", "http://", "http://a:x/", "http://a:99999/",
     "http://a/#b", "http://a/b c", "http://a/\x00", "a b=http://c/", "=http://a/", "https://secret@:1/",
     ",".join(f"http://a{at}/" for at in range(MAX_SERVERS + 1))],
)  # fmt: skip
def test_other_entries_are_refused(text: str):
    """The message has the option and no secret."""
    with pytest.raises(ConfigError, match=r"^mcp") as refused:
        read_addresses(text)
    assert "secret" not in str(refused.value)


def test_two_servers_have_two_names():
    """Otherwise calls would not name one of them."""
    with pytest.raises(ConfigError, match="the name 'a'; NAME=URL"):
        read_addresses("http://a/1,http://a/2")
    assert [each.name for each in read_addresses("http://a/1,b=http://a/2")] == ["a", "b"]
