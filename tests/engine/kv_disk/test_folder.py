"""Folders of several engines, models and users below one parent."""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from engine.errors import DiskError
from engine.kv_disk.folder import DiskFolder
from engine.kv_disk.run_file import Geometry
from tests.conftest import ROOT
from tests.engine.kv_disk.disk import FINGERPRINT, GEOMETRY, Disk, digests, run_bytes, write_once
from tests.limits import HANG_SECONDS

CHAIN = digests("chain", 3)
OTHER = "fp_ba9876543210"
TAKE = """
import sys
from pathlib import Path
from engine.kv_disk.folder import DiskFolder
from engine.kv_disk.run_file import Geometry
folder = DiskFolder(Path(sys.argv[1]), sys.argv[2], Geometry(40, 4), 1 << 20)
print(folder.path.name, flush=True)
sys.stdin.read()
"""


def test_a_new_engine_finds_the_pages(tmp_path: Path):
    """In the same folder, by the same digests."""
    folder = write_once(tmp_path, CHAIN)
    with Disk(tmp_path) as disk:
        assert disk.folder.path == folder
        assert disk.stored(CHAIN) == [True] * 3
        assert disk.read(CHAIN) == [True] * 3
        assert (disk.store.counts.files, disk.store.counts.stored_bytes) == (1, run_bytes(3))


@pytest.mark.parametrize(
    "options",
    [{"fingerprint": OTHER}, {"geometry": Geometry(40, 8)}, {"geometry": Geometry(20, 4)}],
    ids=["model", "page size", "page bytes"],
)
def test_another_model_or_geometry_finds_nothing(tmp_path: Path, options: dict[str, object]):
    """And leaves the files to the engines that can use them."""
    write_once(tmp_path, CHAIN)
    with Disk(tmp_path, **options) as disk:  # type: ignore[arg-type]
        assert disk.stored(CHAIN) == [False] * 3
    with Disk(tmp_path) as disk:
        assert disk.read(CHAIN) == [True] * 3


def test_engines_of_one_model_take_folders_of_their_own(tmp_path: Path):
    """A third takes the folder of one that has ended, with its pages."""
    with Disk(tmp_path) as first, Disk(tmp_path) as second:
        assert first.folder.path != second.folder.path
        first.write(CHAIN)
        assert second.stored(CHAIN) == [False] * 3
        first.store.close()
        with Disk(tmp_path) as third:
            assert third.folder.path == first.folder.path
            assert third.read(CHAIN) == [True] * 3


def test_a_killed_process_leaves_its_folder_to_the_next(tmp_path: Path):
    """The kernel releases its lock."""
    process = subprocess.Popen(
        [sys.executable, "-c", TAKE, str(tmp_path), FINGERPRINT],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None
        name = process.stdout.readline().strip()
        with Disk(tmp_path) as disk:
            assert disk.folder.path.name != name
        process.kill()
        process.wait(HANG_SECONDS)
    with Disk(tmp_path) as disk:
        assert disk.folder.path.name == name


def test_only_the_user_can_read_files_and_folders(tmp_path: Path):
    """From the beginning, also with a generous umask and a folder that was opened to others."""
    before = os.umask(0)
    try:
        folder = write_once(tmp_path / "parent", CHAIN)
        folder.chmod(0o755)
        with Disk(tmp_path / "parent"):
            paths = [folder, folder.parent, *folder.iterdir()]
            modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in paths}
    finally:
        os.umask(before)
    assert {modes.pop(folder.name), modes.pop("parent")} == {0o700}
    assert len(modes) == 2 and set(modes.values()) == {0o600}


@pytest.mark.parametrize("below", ["", "below"])
def test_a_parent_that_cannot_be_used_is_a_clear_error(tmp_path: Path, below: str):
    """It is named."""
    (tmp_path / "file").touch()
    parent = tmp_path / "file" / below
    with pytest.raises(DiskError, match=f"^the folder '{parent}' cannot be used for pages: "):
        DiskFolder(parent, FINGERPRINT, GEOMETRY, 1 << 20)


@pytest.mark.parametrize("call", ["mkdir", "iterdir"])
def test_a_parent_without_permissions_is_a_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str):
    """Tests run as root too, for which there are none, so the system's refusal is imitated."""

    def refuse(*args: object, **kwargs: object) -> None:
        raise PermissionError(13, "Permission denied")

    with (
        monkeypatch.context() as context,
        pytest.raises(DiskError, match="cannot be used for pages: Permission denied"),
    ):
        context.setattr(Path, call, refuse)
        DiskFolder(tmp_path, FINGERPRINT, GEOMETRY, 1 << 20)
    with Disk(tmp_path) as disk:
        assert disk.folder.path.name.endswith("-0"), "the lock was not released"


def test_names_that_are_links_or_files_are_passed_over(tmp_path: Path):
    """A link with the name of a folder could lead anywhere."""
    name = write_once(tmp_path / "one").name
    parent = tmp_path / "two"
    (tmp_path / "elsewhere").mkdir()
    parent.mkdir()
    (parent / name).symlink_to(tmp_path / "elsewhere")
    (parent / name.replace("-0", "-1")).touch()
    with Disk(parent) as disk:
        assert disk.folder.path.name.endswith("-2")
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_folder_of_another_user_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Its owner could write any pages into it."""
    first = write_once(tmp_path, CHAIN)
    owner = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    with pytest.raises(DiskError, match="gives new folders another owner"):
        DiskFolder(tmp_path, FINGERPRINT, GEOMETRY, 1 << 20)
    with pytest.raises(DiskError):
        DiskFolder(tmp_path, OTHER, GEOMETRY, 0)
    assert len(list(first.glob("*.kv"))) == 1


def test_folders_of_other_models_go_first_when_the_limit_asks_for_it(tmp_path: Path):
    """At the start and for a new file, the least recently used first, before own pages."""
    old = write_once(tmp_path, CHAIN, fingerprint="fp_old")
    new = write_once(tmp_path, CHAIN, fingerprint="fp_new")
    for file in old.glob("*.kv"):
        os.utime(file, (1, 1))
    with Disk(tmp_path, limit_bytes=2 * run_bytes(3)) as disk:
        assert old.exists() and new.exists()
        disk.write(CHAIN)
        assert not old.exists() and new.exists()
        assert disk.stored(CHAIN) == [True] * 3
    with Disk(tmp_path, limit_bytes=2 * run_bytes(3) - 1) as disk:
        assert not new.exists()
        assert disk.stored(CHAIN) == [True] * 3


def test_a_folder_in_use_is_not_counted_and_not_removed(tmp_path: Path):
    """Its engine has a limit of its own."""
    with Disk(tmp_path, fingerprint=OTHER) as other:
        other.write(CHAIN)
        with Disk(tmp_path, limit_bytes=run_bytes(3)) as disk:
            disk.write(CHAIN)
            assert disk.stored(CHAIN) == [True] * 3
        assert other.read(CHAIN) == [True] * 3


def test_a_folder_that_is_taken_later_is_not_removed(tmp_path: Path):
    """It was unused when this engine started."""
    write_once(tmp_path, CHAIN, fingerprint=OTHER)
    with Disk(tmp_path, limit_bytes=run_bytes(3)) as disk, Disk(tmp_path, fingerprint=OTHER) as other:
        assert disk.write(CHAIN)
        assert other.read(CHAIN) == [True] * 3


def test_files_of_other_programs_survive_the_removal_of_a_folder(tmp_path: Path):
    """And folders with similar names are not looked at."""
    other = write_once(tmp_path, CHAIN, fingerprint=OTHER)
    (other / "notes.txt").write_text("mine")
    similar = tmp_path / "carousel-kv-mine"
    similar.mkdir()
    (similar / "lock").touch()
    (similar / "0123456789abcdef.kv").write_bytes(bytes(10_000))
    with Disk(tmp_path, limit_bytes=run_bytes(3)) as disk:
        disk.write(CHAIN)
    assert [path.name for path in other.iterdir()] == ["notes.txt"]
    assert (similar / "0123456789abcdef.kv").exists()


def test_unused_folders_of_the_same_model_stay(tmp_path: Path):
    """An engine that starts again soon takes them."""
    with Disk(tmp_path, limit_bytes=run_bytes(3)) as first:
        first.write(CHAIN)
        with Disk(tmp_path, limit_bytes=run_bytes(3)) as second:
            first.store.close()
            assert second.write(digests("other", 3))
    with Disk(tmp_path, limit_bytes=run_bytes(3)) as first, Disk(tmp_path, limit_bytes=run_bytes(3)) as second:
        assert first.read(CHAIN) == [True] * 3
        assert second.read(digests("other", 3)) == [True] * 3


@pytest.mark.parametrize(("module", "call"), [(fcntl, "flock"), (os, "open"), (os, "fstat")])
def test_a_folder_that_is_removed_while_it_is_taken_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: ModuleType, call: str
):
    """An engine of another model removes it before this one opens it, its lock file, or locks that."""
    folder = write_once(tmp_path, CHAIN)
    original = getattr(module, call)

    def remove_and_call(*args: Any, **kwargs: Any) -> Any:
        monkeypatch.setattr(module, call, original)
        shutil.rmtree(folder)
        return original(*args, **kwargs)

    monkeypatch.setattr(module, call, remove_and_call)
    with Disk(tmp_path) as disk:
        assert disk.folder.path.exists()
        assert disk.write(CHAIN)
