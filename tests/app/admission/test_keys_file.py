"""Reading of keys files, and edits by `carousel keys`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.__main__ import main
from app.admission.keys_file import KeysFileError, fingerprint, is_exposed, parse_keys, read_keys_file
from app.admission.tenant_tables import LIMIT_FIELDS
from app.admission.tenants import key_digest, tenant_of_key
from app.cli import keys_command, keys_editor
from app.cli.keys_editor import KEY_PREFIX, add_key
from app.options import parse
from app.settings import SettingsError
from tests.conftest import ROOT
from tests.limits import HANG_SECONDS

DIGEST = key_digest("k")
HAND_WRITTEN = f"""\
# Made by hand.
[tenants.alice]   # first
key_sha256 = "{DIGEST}"
tiers = [
    "flex",  # at night
]
"""

RunKeys = Callable[..., tuple[int, str, str]]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "keys.toml"


@pytest.fixture
def model(tmp_path: Path) -> str:
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text("{}")
    return str(tmp_path / "model")


@pytest.fixture
def run_keys(path: Path, capsys) -> RunKeys:
    """Return a function that runs `carousel keys` and returns its exit status, output and errors."""

    def run(*arguments: str) -> tuple[int, str, str]:
        status = main(["keys", *arguments, "--keys-file", str(path)])
        return (status, *capsys.readouterr())

    return run


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("[tenants.a", "at end of document"),
        ("port = 1\n", "unknown field 'port'"),
        ("[[tenants]]\n", "tenants must be tables"),
        ("[tenants.a]\n", "tenants.a must have either key or key_sha256"),
        (f'[tenants.a]\nkey_sha256 = "{DIGEST[1:]}"\n', "tenants.a.key_sha256 must be 64"),
        (f'[tenants.a]\nkey_sha256 = "{DIGEST}"\n[tenants.a]\n', "tenants.*line 3"),
        (f'[tenants.a]\nkey_sha256 = "{DIGEST}"\n[tenants.b]\nkey_sha256 = "{DIGEST}"\n', "tenants.b and tenants.a"),
        (f'[tenants.a]\nkey_sha256 = "{DIGEST}"\ncreated = "today"\n', "tenants.a: .*created"),
        (f'[tenants.a]\nkey_sha256 = "{DIGEST}"\nmax_queue = 0\n', "tenants.a.max_queue must be at least 1"),
    ],
)
def test_a_bad_file_is_refused_by_file_and_field(path: Path, model: str, text: str, names: str):
    """The error is one line and comes at server startup."""
    path.write_text(text)
    with pytest.raises(SettingsError, match=names) as raised:
        parse([model, "--keys-file", str(path)], {})
    assert str(path) in str(raised.value) and "\n" not in str(raised.value)


@given(st.text())
def test_any_text_is_read_or_refused(text: str):
    """Only `KeysFileError` is raised."""
    try:
        assert parse_keys(text, Path("keys.toml")) == {}
    except KeysFileError as error:
        assert str(error).startswith("keys file keys.toml: ")


@pytest.mark.parametrize(
    ("others", "names"),
    [
        (["--api-key", "k"], "tenants.alice has the same key as 'key-"),
        (["--config", "carousel.toml"], "tenants.alice has the name of another tenant"),
        (["--operator-key", "k"], "operator_key must not be an API key"),
    ],
)
def test_names_and_keys_are_unique_over_all_sources(path: Path, model: str, monkeypatch, others: list[str], names: str):
    """A key that two tables claim would belong to one of them at random."""
    path.write_text(HAND_WRITTEN)
    monkeypatch.chdir(path.parent)
    Path("carousel.toml").write_text('[tenants.alice]\nkey = "another"\n')
    with pytest.raises(SettingsError, match=names):
        parse([model, "--keys-file", str(path), *others], {})


@pytest.mark.parametrize(
    ("prepare", "names"),
    [
        (lambda path: None, "does not exist; `carousel keys add NAME"),
        (lambda path: path.mkdir(), "cannot be read: Is a directory"),
        (lambda path: path.write_bytes(b"\xff"), "is not UTF-8"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused(path: Path, prepare, names: str):
    """The message has the path of the file."""
    prepare(path)
    with pytest.raises(KeysFileError, match=f"{path}.*{names}"):
        read_keys_file(path, ())


def test_keys_are_required_with_an_empty_file_from_any_option_source(path: Path, model: str):
    """Without a file and without keys, no key is required."""
    path.touch()
    config = path.with_name("carousel.toml")
    config.write_text(f'keys_file = "{path}"\n')
    for arguments, environment in (
        (["--keys-file", str(path)], {}),
        ([], {"CAROUSEL_KEYS_FILE": str(path)}),
        (["--config", str(config)], {}),
    ):
        settings = parse([model, *arguments], environment)
        assert settings.requires_keys and settings.tenants_by_digest == {}
    assert not parse([model], {}).requires_keys
    with pytest.raises(SettingsError, match="keys_file must be the path of a file"):
        parse([model], {"CAROUSEL_KEYS_FILE": ""})


def test_tenants_of_all_sources_are_found_by_digest(path: Path, model: str):
    """They have the limits of their tables."""
    path.write_text(HAND_WRITTEN)
    found = parse([model, "--keys-file", str(path), "--api-key", "other"], {}).tenants_by_digest
    assert found[DIGEST].name == "alice" and found[DIGEST].tiers == ("flex",)
    assert found[key_digest("other")] == tenant_of_key("other")


def test_add_prints_only_the_key_and_stores_only_its_digest(run_keys: RunKeys, path: Path):
    """Only its owner may read the file."""
    status, key, message = run_keys("add", "alice", "--requests-per-minute", "5", "--tiers", "flex,default")
    key = key.removesuffix("\n")
    assert status == 0 and key.startswith(KEY_PREFIX) and len(key) == len(KEY_PREFIX) + 43
    assert key not in message and key not in path.read_text()
    (tenant,) = read_keys_file(path, ())
    assert (tenant.name, tenant.digest, tenant.requests_per_minute) == ("alice", key_digest(key), 5)
    assert tenant.tiers == ("flex", "default")
    assert path.stat().st_mode & 0o777 == 0o600 and not is_exposed(path)
    path.chmod(0o640)
    assert is_exposed(path)


def test_edits_keep_comments_and_limits(run_keys: RunKeys, path: Path):
    """A replaced key keeps its table, and given limits change."""
    path.write_text(HAND_WRITTEN)
    assert run_keys("add", "bob")[0] == 0
    assert path.read_text().startswith(HAND_WRITTEN)
    assert run_keys("add", "alice")[0] == 1
    status, key, _ = run_keys("add", "alice", "--replace", "--max-queue", "7")
    alice = next(tenant for tenant in read_keys_file(path, ()) if tenant.name == "alice")
    assert status == 0 and alice.digest == key_digest(key.strip())
    assert (alice.tiers, alice.max_queue) == (("flex",), 7)
    assert "# Made by hand." in path.read_text() and "# at night" in path.read_text()
    assert run_keys("revoke", "alice") == (0, "", f"The key of alice is removed from {path}.\n")
    assert [tenant.name for tenant in read_keys_file(path, ())] == ["bob"]


def test_a_plain_key_is_replaced_by_a_digest(run_keys: RunKeys, path: Path):
    """A table never has both."""
    path.write_text('[tenants.alice]\nkey = "k"\n')
    assert run_keys("add", "alice", "--replace")[0] == 0
    assert "key =" not in path.read_text()


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (["add", "alice"], "already has a tenant 'alice'; --replace"),
        (["add", "bob", "--weight", "0"], "tenants.bob.weight must be a positive number"),
        (["add", "bob", "--tiers", "gold"], "tenants.bob.tiers"),
        (["revoke", "alcie"], "has no tenant 'alcie'; the nearest name is 'alice'"),
        (["revoke", "zed"], "has no tenant 'zed'\n"),
    ],
)
def test_a_refused_command_changes_nothing(run_keys: RunKeys, path: Path, arguments: list[str], names: str):
    """It exits with status 1 and one line."""
    path.write_text(HAND_WRITTEN)
    status, output, error = run_keys(*arguments)
    assert (status, output, error.count("\n")) == (1, "", 1) and names in error
    assert path.read_text() == HAND_WRITTEN


@pytest.mark.parametrize("text", ["[tenants", f'tenants = {{a = {{key_sha256 = "{DIGEST}"}}}}\n'])
def test_a_file_that_cannot_be_edited_is_left_alone(run_keys: RunKeys, path: Path, text: str):
    """The file is invalid, or its style is not that of tables."""
    path.write_text(text)
    assert run_keys("add", "bob")[0] == 1
    assert path.read_text() == text


def test_names_that_logs_cannot_show_are_refused(run_keys: RunKeys, capsys):
    """The message has the rule."""
    for name in ("", "two words", "a\nb", "-x", "é", "x" * 65):
        with pytest.raises(SystemExit):
            run_keys("add", "--", name)
    assert "1 to 64 ASCII letters" in capsys.readouterr().err


def test_list_shows_names_dates_digests_and_limits(run_keys: RunKeys, path: Path):
    """It prints a table or JSON, never with a key."""
    path.write_text(HAND_WRITTEN)
    assert run_keys("add", "bob", "--weight", "2")[0] == 0
    status, table, _ = run_keys("list")
    lines = table.splitlines()
    assert status == 0 and lines[0].split() == ["name", "created", "digest", "limits"]
    assert lines[1].split() == ["alice", "-", DIGEST[:12], "tiers", "flex"]
    entries = json.loads(run_keys("list", "--json")[1])
    assert [(entry["name"], entry["limits"]) for entry in entries] == [
        ("alice", {"tiers": ["flex"]}),
        ("bob", {"weight": 2.0}),
    ]
    assert entries[1]["created"].endswith("+00:00") and entries[1]["key_sha256"][:12] in lines[2]


def test_list_and_revoke_do_not_create_a_file(run_keys: RunKeys, path: Path):
    """The error states that it does not exist."""
    for arguments in (["list"], ["revoke", "alice"]):
        status, _, error = run_keys(*arguments)
        assert status == 1 and f"{path} does not exist" in error
    assert list(path.parent.iterdir()) == []


def test_every_limit_of_a_table_is_a_flag_of_add():
    """No limit requires editing by hand."""
    assert {*keys_command.LIMIT_FLAGS, "tiers"} == set(LIMIT_FIELDS)


def test_the_default_path_is_the_variable_or_in_the_configuration_folder(monkeypatch, tmp_path: Path):
    """XDG_CONFIG_HOME names that folder."""
    monkeypatch.delenv("CAROUSEL_KEYS_FILE", raising=False)
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert keys_command.default_path() == tmp_path / ".config/carousel/keys.toml"
    monkeypatch.setenv("XDG_CONFIG_HOME", "/etc/xdg")
    assert keys_command.default_path() == Path("/etc/xdg/carousel/keys.toml")
    monkeypatch.setenv("CAROUSEL_KEYS_FILE", "k.toml")
    assert keys_command.default_path() == Path("k.toml")


def test_a_writer_waits_for_another_one(path: Path):
    """It reads the file only afterwards; otherwise one of the keys would be lost."""
    with keys_editor._edited(path) as tables:
        second = threading.Thread(target=add_key, args=(path, "bob"))
        second.start()
        second.join(0.5)  # without a lock it is done by then
        tables["alice"] = {"key_sha256": DIGEST}
    second.join(HANG_SECONDS)
    assert {tenant.name for tenant in read_keys_file(path, ())} == {"alice", "bob"}


def test_concurrent_writers_lose_no_key(path: Path):
    """Each writer is a separate process."""
    command = [sys.executable, "-m", "app", "keys", "add", "--keys-file", str(path)]
    names = [f"t{number}" for number in range(6)]
    processes = [subprocess.Popen([*command, name], cwd=ROOT, stdout=subprocess.PIPE, text=True) for name in names]
    printed = [process.communicate(timeout=HANG_SECONDS)[0].strip() for process in processes]
    found = {tenant.name: tenant.digest for tenant in read_keys_file(path, ())}
    assert found == {name: key_digest(key) for name, key in zip(names, printed, strict=True)}


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_write_that_fails_leaves_the_old_file_whole(run_keys: RunKeys, path: Path, monkeypatch, step: str):
    """The disk is full or the rename fails, and no temporary file remains."""
    path.write_text(HAND_WRITTEN)

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(*{"fsync": (keys_editor.os, "fsync", fail), "replace": (Path, "replace", fail)}[step])
    status, output, error = run_keys("add", "bob")
    assert (status, output) == (1, "") and f"{path} cannot be written: No space left" in error
    assert path.read_text() == HAND_WRITTEN
    assert sorted(file.name for file in path.parent.iterdir()) == [".keys.toml.lock", "keys.toml"]


def test_a_killed_writer_leaves_the_old_file_whole(path: Path):
    """It is killed after the new version is written and before it is renamed."""
    path.write_text(HAND_WRITTEN)
    code = (
        "import os, signal, sys; from pathlib import Path; from app.cli.keys_editor import add_key\n"
        "Path.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n"
        "add_key(Path(sys.argv[1]), 'bob')"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], cwd=ROOT, timeout=HANG_SECONDS, check=False)
    assert done.returncode == -9
    assert path.read_text() == HAND_WRITTEN
    add_key(path, "bob")  # the lock ended with the process
    assert [tenant.name for tenant in read_keys_file(path, ())] == ["alice", "bob"]


def test_a_link_stays_a_link_and_its_target_changes(path: Path):
    """Mounted folders of secrets consist of such links."""
    target = path.with_name("real.toml")
    target.write_text(HAND_WRITTEN)
    path.symlink_to(target)
    add_key(path, "bob")
    assert path.is_symlink() and "[tenants.bob]" in target.read_text()


def test_a_new_version_is_given_to_the_owner_of_the_old_one(path: Path, monkeypatch):
    """The server's user can still read a file that root has edited."""
    path.write_text(HAND_WRITTEN)
    owners: list[tuple[int, int]] = []
    monkeypatch.setattr(keys_editor.os, "fstat", lambda _: SimpleNamespace(st_uid=12345, st_gid=23456, st_size=0))
    monkeypatch.setattr(keys_editor.os, "fchown", lambda _, user, group: owners.append((user, group)))
    add_key(path, "bob")
    assert owners == [(path.stat().st_uid, path.stat().st_gid)]


def test_a_fingerprint_changes_with_an_edit_a_replacement_and_the_loss_of_a_file(path: Path):
    """It does not change for an unchanged file."""
    assert fingerprint(path) is None
    path.write_text("a")
    fingerprints = [fingerprint(path)]
    assert fingerprint(path) == fingerprints[0]
    path.write_text("ab")
    fingerprints.append(fingerprint(path))
    other = path.with_name("other")
    other.write_text("ab")
    os.utime(other, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns))
    other.replace(path)
    fingerprints.append(fingerprint(path))
    assert len(set(fingerprints)) == 3
