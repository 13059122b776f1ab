"""Clients of other projects against a real server; `make clients` tries more of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests import requirements
from tests.clients.catalogue import CLIENTS, Client
from tests.clients.environments import DEFAULT_HOME, InstallationFailed
from tests.clients.trial import Servers, running_servers, try_client

IN_CI = [client for client in CLIENTS if client.in_ci]


@pytest.fixture(scope="module")
def servers() -> Iterator[Servers]:
    with running_servers() as running:
        yield running


@pytest.mark.clients
@pytest.mark.slow
@pytest.mark.timeout(2400)  # the first test of a client installs it
@pytest.mark.parametrize("client", IN_CI, ids=lambda client: client.name)
def test_each_feature_of_a_client_works(servers: Servers, client: Client):
    """The driver of the client tries them, and no other host is contacted."""
    try:
        outcomes = try_client(DEFAULT_HOME, client, servers)
    except InstallationFailed as error:
        if requirements.is_strict():
            pytest.fail(f"{error}, and CAROUSEL_STRICT forbids skipping tests")
        pytest.skip(f"{client.name} cannot be installed: {error}")
    assert [outcome for outcome in outcomes if not outcome.ok] == []
