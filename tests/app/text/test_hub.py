"""Downloads of the hub's own client from a hub on this machine: only the chosen files; earlier ones if it is away."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import huggingface_hub.constants
import pytest

from app.__main__ import main
from app.options import resolve
from app.settings import SettingsError
from app.text.model_folder import download_model

REPOSITORY = "owner/name-GGUF"
SHARDS = [f"F16/m-F16-0000{number}-of-00002.gguf" for number in (1, 2)]


class Hub:
    """Hub with one repository, whose revisions have different files. It counts the files that it sends."""

    def __init__(self) -> None:
        self.revisions: dict[str, dict[str, bytes]] = {}
        self.sent: list[str] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer._answer(self)

            do_HEAD = do_GET  # noqa: N815 (a name of the base class)

            def log_message(self, *arguments: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def add(self, revision: str, *names: str) -> None:
        """Add a revision with files whose content is their name."""
        self.revisions[revision] = {name: f"{revision} {name}".encode() for name in names}

    def _commit(self, revision: str) -> str:
        return hashlib.sha1(revision.encode()).hexdigest()

    def _answer(self, handler: BaseHTTPRequestHandler) -> None:
        """Answer as the hub: a description, a list of files, or a file."""
        path = handler.path.partition("?")[0]
        revisions = {self._commit(name): name for name in self.revisions} | {name: name for name in self.revisions}
        if path.startswith(f"/api/models/{REPOSITORY}"):
            _, _, revision = path.removeprefix(f"/api/models/{REPOSITORY}").partition("/revision/")
            is_tree = "/tree/" in path
            revision = path.rpartition("/tree/")[2] if is_tree else revision or "main"
            if revision not in revisions:
                self._send(handler, 404, b"", {"X-Error-Code": "RevisionNotFound"})
                return
            files = self.revisions[revisions[revision]]
            tree = [{"type": "file", "path": name, "size": len(data), "oid": name} for name, data in files.items()]
            siblings = [{"rfilename": name} for name in files]
            found = {"id": REPOSITORY, "sha": self._commit(revisions[revision]), "siblings": siblings}
            self._send(handler, 200, json.dumps(tree if is_tree else found).encode())
            return
        if not path.startswith(f"/{REPOSITORY}/resolve/"):
            self._send(handler, 404, b"", {"X-Error-Code": "RepoNotFound"})
            return
        commit, _, name = path.removeprefix(f"/{REPOSITORY}/resolve/").partition("/")
        data = self.revisions[revisions[commit]][name]
        if handler.command == "GET":
            self.sent.append(name)
        tag = f'"{hashlib.sha256(data).hexdigest()}"'
        self._send(handler, 200, data, {"ETag": tag, "X-Repo-Commit": self._commit(revisions[commit])})

    def _send(
        self, handler: BaseHTTPRequestHandler, status: int, data: bytes, headers: dict[str, str] | None = None
    ) -> None:
        handler.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **(headers or {})}.items():
            handler.send_header(name, value)
        handler.end_headers()
        if handler.command == "GET":
            handler.wfile.write(data)


def use_hub(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    """Let the client use the hub at a URL."""
    constants = huggingface_hub.constants
    template = constants.HUGGINGFACE_CO_URL_TEMPLATE.replace(constants.ENDPOINT, url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "ENDPOINT", url)


def goes_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the client use a hub that refuses connections."""
    use_hub(monkeypatch, "http://127.0.0.1:9")


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """Yield a hub that the client uses, with an empty cache, and with a repository of GGUF files."""
    running = Hub()
    running.add("main", "README.md", "config.json", "m-Q4_K_M.gguf", "m-Q8_0.gguf", "mmproj-F16.gguf", *SHARDS)
    running.add("v2", "m-Q4_K_M.gguf")
    use_hub(monkeypatch, running.url)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    thread = threading.Thread(target=running.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield running
    running.server.shutdown()
    running.server.server_close()
    thread.join()


def test_only_the_chosen_file_is_fetched_and_once(hub: Hub):
    """Clients see the repository and the quantisation."""
    for _ in range(2):
        settings = resolve({"model": f"{REPOSITORY}:q8_0"}, {}, download=download_model)
    assert Path(settings.engine.model).read_text() == "main m-Q8_0.gguf"
    assert settings.model_name == f"{REPOSITORY}:Q8_0"
    assert hub.sent == ["m-Q8_0.gguf"]


def test_all_shards_of_a_model_are_fetched(hub: Hub):
    """The path is that of the first; the others are beside it."""
    first = download_model(f"{REPOSITORY}:F16")
    assert first.parts[-2:] == ("F16", "m-F16-00001-of-00002.gguf")
    assert {file.name for file in first.parent.iterdir()} == {Path(shard).name for shard in SHARDS}
    assert sorted(hub.sent) == SHARDS


def test_the_revision_is_that_of_the_option(hub: Hub):
    """Its only file needs no quantisation, and an unknown revision is an error."""
    settings = resolve({"model": REPOSITORY, "revision": "v2"}, {}, download=download_model)
    assert Path(settings.engine.model).read_text() == "v2 m-Q4_K_M.gguf"
    assert settings.model_name == REPOSITORY
    with pytest.raises(SettingsError, match=r"cannot be fetched from the hub: .*404"):
        resolve({"model": REPOSITORY, "revision": "v3"}, {}, download=download_model)


@pytest.mark.parametrize(
    ("choice", "reason"),
    [
        (
            "",
            "has 3 GGUF models: F16, Q4_K_M, Q8_0; choose one, for example `carousel serve owner/name-GGUF:Q4_K_M`",
        ),
        (":Q5_K_M", "has no Q5_K_M; choose one of F16, Q4_K_M, Q8_0"),
    ],
)
def test_a_choice_that_cannot_be_made_is_refused_in_one_line(
    hub: Hub, capsys: pytest.CaptureFixture[str], choice: str, reason: str
):
    """By `carousel fetch` and `carousel serve` alike, before anything is fetched."""
    model = f"{REPOSITORY}{choice}"
    line = f"model {model!r}: the repository {reason}"
    assert main(["fetch", model]) == 1
    assert main(["serve", model]) == 2
    assert capsys.readouterr().err == f"carousel: {line}\n" * 2
    assert hub.sent == []


def test_a_checkpoint_is_fetched_without_its_gguf_files(hub: Hub):
    """A repository with safetensors is a folder, as before."""
    hub.add("main", "config.json", "model.safetensors", "tokenizer.json", "m-Q4_K_M.gguf", "pytorch_model.bin")
    settings = resolve({"model": REPOSITORY}, {}, download=download_model)
    assert sorted(file.name for file in Path(settings.engine.model).iterdir()) == sorted(hub.sent)
    assert sorted(hub.sent) == ["config.json", "model.safetensors", "tokenizer.json"]


def test_a_server_with_engines_elsewhere_fetches_no_weights(hub: Hub):
    """Those of a folder, which only engines read; a later start that computes fetches them."""
    hub.add("main", "config.json", "model.safetensors", "tokenizer.json", "chat_template.jinja")
    remote = {"engines": "10.0.0.2:9400", "token_file": "token"}
    folder = resolve({"model": REPOSITORY, **remote}, {}, download=download_model).engine.model
    assert sorted(hub.sent) == ["chat_template.jinja", "config.json", "tokenizer.json"]
    assert resolve({"model": REPOSITORY}, {}, download=download_model).engine.model == folder
    assert hub.sent[3:] == ["model.safetensors"]


@pytest.mark.parametrize("is_offline", [False, True])
def test_files_of_earlier_downloads_are_served_without_the_hub(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, is_offline: bool
):
    """Also with HF_HUB_OFFLINE; another quantisation needs the hub."""
    fetched = download_model(f"{REPOSITORY}:Q8_0")
    goes_away(monkeypatch)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", is_offline)
    assert download_model(f"{REPOSITORY}:Q8_0") == fetched
    assert resolve({"model": REPOSITORY}, {}, download=download_model).engine.model == str(fetched)
    with pytest.raises(SettingsError, match=r"the earlier download has no Q4_K_M; choose one of Q8_0 \(no list of"):
        resolve({"model": f"{REPOSITORY}:Q4_K_M"}, {}, download=download_model)


def test_without_the_hub_and_earlier_files_the_reason_is_given(hub: Hub, monkeypatch: pytest.MonkeyPatch):
    """In one line, as for a repository that does not exist."""
    with pytest.raises(SettingsError, match=r"^model 'owner/other:Q8_0': no such folder, and it cannot .*: 404 .*\S$"):
        resolve({"model": "owner/other:Q8_0"}, {}, download=download_model)
    goes_away(monkeypatch)
    with pytest.raises(SettingsError, match=r"cannot be fetched from the hub: .*Connection refused$"):
        resolve({"model": f"{REPOSITORY}:Q8_0"}, {}, download=download_model)


def test_carousel_fetch_prints_the_path_of_the_file(hub: Hub, capsys: pytest.CaptureFixture[str]):
    """Its revision is an option too."""
    assert main(["fetch", f"hf.co/{REPOSITORY}:q4_k_m", "--revision", "v2"]) == 0
    printed = capsys.readouterr().out.strip()
    assert printed.startswith(f"hf.co/{REPOSITORY}:q4_k_m is in /") and printed.endswith("/m-Q4_K_M.gguf")
    assert hub.sent == ["m-Q4_K_M.gguf"]
