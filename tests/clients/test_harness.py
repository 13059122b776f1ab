"""Parts of the client suite that need no client."""

from __future__ import annotations

import dataclasses
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest

from tests.clients import __main__ as command
from tests.clients import environments, trial
from tests.clients.__main__ import select_clients
from tests.clients.catalogue import CLIENTS, DRIVERS, Client
from tests.clients.environments import InstallationFailed, install_packages
from tests.clients.table import BEGIN, DOCUMENT, END, updated
from tests.clients.trial import Outcome, Servers, try_client

CLIENT = Client("library", "library", ("library==1.2",), "driver.py")
DRIVER = """
import json, os, sys, urllib.request
try:
    urllib.request.urlopen("http://example.org/telemetry")
except OSError:
    pass
print("a line of a library")
print(json.dumps({"feature": "chat", "ok": sys.argv[1:] == ["http://a", "http://b"], "detail": ""}))
print(json.dumps({"feature": "home", "ok": os.environ["HOME"] != "%s", "detail": ""}))
print(json.dumps({"feature": "browser", "ok": os.environ["CAROUSEL_CHROMIUM"] == "/chromium", "detail": ""}))
sys.exit(3)
"""


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """Record commands of installations instead of running them."""
    recorded: list[tuple[str, ...]] = []
    monkeypatch.setattr(environments, "_run", lambda *command, folder: recorded.append(command))
    return recorded


def test_names_of_clients_are_unique_and_their_drivers_exist():
    """Each driver belongs to a client, and equal environments have equal packages."""
    assert len({client.name for client in CLIENTS}) == len(CLIENTS)
    drivers = {file.name for pattern in ("*.py", "*.mjs") for file in DRIVERS.glob(pattern)}
    shared = {"common.py", "common.mjs", "forecast.py", "everyday.py", "agent.py"}
    assert {client.driver for client in CLIENTS} == drivers - shared
    packages = {client.environment: client.packages for client in CLIENTS}
    assert all(packages[client.environment] == client.packages for client in CLIENTS)


def test_the_version_is_that_of_the_first_package():
    """The packages of pip and of npm are told apart by their pins."""
    scoped = Client("a", "a", ("@scope/name@2.0", "other@1"), "a.mjs")
    assert (CLIENT.version, CLIENT.is_npm, scoped.version, scoped.is_npm) == ("1.2", False, "2.0", True)


def test_names_select_clients_by_their_beginning():
    """No name selects all, and an unknown one is an error that lists them."""
    assert [client.name for client in select_clients(["AI SDK"])] == [
        "AI SDK, openai",
        "AI SDK, anthropic",
        "AI SDK, openai-compatible",
    ]
    assert select_clients([]) == list(CLIENTS)
    with pytest.raises(ValueError, match=r"got 'curl'; clients are: .*LangChain"):
        select_clients(["curl"])


@pytest.mark.parametrize("is_npm", [False, True])
def test_an_installation_is_reused_until_its_packages_change(tmp_path: Path, commands: list, is_npm: bool):
    """A folder with other packages is replaced."""
    folder = install_packages(tmp_path / "a", ("one",), is_npm=is_npm)
    first = len(commands)
    assert commands[-1][-1] == "one"
    (folder / "left.txt").touch()
    install_packages(folder, ("one",), is_npm=is_npm)
    assert len(commands) == first and (folder / "left.txt").exists()
    install_packages(folder, ("two",), is_npm=is_npm)
    assert commands[-1][-1] == "two" and not (folder / "left.txt").exists()


def test_a_failed_installation_is_not_reused(tmp_path: Path):
    """The error has the command and its output."""
    with pytest.raises(InstallationFailed, match="not a valid requirement ended with 1: ERROR: Invalid requirement"):
        install_packages(tmp_path / "a", ("not a valid requirement",), is_npm=False)
    assert not (tmp_path / "a/installed.json").exists()


@pytest.mark.parametrize("fails", [False, True])
def test_a_client_that_cannot_be_installed_fails_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: bool):
    """The table is then left as it was. Otherwise only the rows of the chosen clients change."""

    def try_fake(home: Path, client: Client, servers: Servers) -> list[Outcome]:
        if fails and client.name == "LangChain":
            raise InstallationFailed("no network")
        return [Outcome("chat", True, "")]

    document = tmp_path / "protocols.md"
    document.write_text(f"{BEGIN}\n\n| client | version | errors |\n|--|--|--|\n| aider | 0 | yes |\n\n{END}")
    monkeypatch.setattr(command, "DOCUMENT", document)
    monkeypatch.setattr(command, "try_client", try_fake)
    monkeypatch.setattr(command, "running_servers", nullcontext)
    monkeypatch.setattr(sys, "argv", ["clients", "litellm", "LangChain"])
    assert command.main() == int(fails)
    lines = document.read_text().splitlines()[2:-2]
    assert [line.split(" | ")[0] for line in lines[2:]] == (
        ["| aider"] if fails else ["| LangChain", "| litellm", "| aider"]
    )


def test_a_trial_reports_features_the_exit_status_and_contacted_hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The driver has a home of its own and the path of a browser, and reaches nothing through the proxy."""
    (tmp_path / "driver.py").write_text(DRIVER % Path.home())
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/python").symlink_to(sys.executable)
    monkeypatch.setattr(trial, "DRIVERS", tmp_path)
    monkeypatch.setattr(trial, "install", lambda home, client: tmp_path)
    monkeypatch.setattr(trial.chromium, "find", lambda: "/chromium")
    outcomes = try_client(tmp_path, CLIENT, Servers("http://a", "http://b"))
    assert [(outcome.feature, outcome.ok) for outcome in outcomes] == [
        ("chat", True),
        ("home", True),
        ("browser", True),
        ("driver", False),
        ("offline", False),
    ]
    target = "GET http://example.org/telemetry HTTP/1.1"
    assert outcomes[-1].detail == target
    tolerant = dataclasses.replace(CLIENT, tolerated=("GET http://example.org/",))
    assert try_client(tmp_path, tolerant, Servers("http://a", "http://b"))[-1] == Outcome("offline", True, "")


def test_the_table_has_a_row_for_each_client_and_a_cell_for_each_feature():
    """A feature that was not tried has an empty cell. Rows of clients that were not tried are kept."""
    outcomes = [
        Outcome("chat", True, ""),
        Outcome("tools", False, "error"),
        Outcome("offline", True, ""),
        Outcome("stored", True, "", limit=True),
    ]
    old = (
        f"a\n{BEGIN}\n\n| client | version | stream | gone |\n|--|--|--|--|\n| litellm | 0.9 | yes | yes |\n\n{END}\nb"
    )
    new = updated(old, {"LangChain": outcomes})
    version = next(client.version for client in CLIENTS if client.name == "LangChain")
    assert new.splitlines()[5:7] == [
        f"| LangChain | {version} | yes |  |  | no |  |  |  |  |  | limit |",
        "| litellm | 0.9 |  | yes |  |  |  |  |  |  |  |  |",
    ]
    assert updated(new, {}) == new
    assert new.startswith(f"a\n{BEGIN}\n\n| client |") and new.endswith(f"|\n\n{END}\nb")
    with pytest.raises(ValueError, match="no table of clients"):
        updated("a", {})


def test_the_document_lists_every_client_with_its_pinned_version():
    """`make clients` has run since the last change of the pins."""
    lines = DOCUMENT.read_text(encoding="utf-8").splitlines()
    for client in CLIENTS:
        assert any(line.startswith(f"| {client.name} | {client.version} |") for line in lines), client
