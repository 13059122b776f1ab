"""Location of the model: a GGUF file, a folder in Hugging Face layout, a hub name that is downloaded into one, or the
name of the bundled or of the default model.
"""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Callable
from pathlib import Path

from app.resources import demo_model
from app.text.packaged_model import DEFAULT_MODEL
from engine.model_files.folder import CONFIG_FILE, FolderFiles
from engine.model_files.open_model import has_gguf_name, is_gguf

DEMO = "demo"  # name of the bundled model
HUB_ADVICE = "GGUF files of the hub must be downloaded first; serve the downloaded file"
FOLDER_ADVICE = "a GGUF file, a folder with config.json and safetensors files, or a hub name (owner/name), is needed"
PROJECTOR = "mmproj"  # begins the names of files of image encoders, which are no models of text
LATER_SHARD = re.compile(r"-(?!00001)\d{5}-of-\d{5}\.gguf$", re.IGNORECASE)


class ModelNotFound(Exception):
    """No model can be served under the given name; the message names it and a remedy."""


def find_folder(model: str, download: Callable[[str], Path] | None) -> Path:
    """Return the folder or the GGUF file of `model`. `download(name)` fetches a model and returns its folder; it is
    called for hub names that are not a local folder, and for the default model if it has not been fetched. The
    names of the bundled and of the default model take precedence over folders. Raises `ModelNotFound`.
    """
    if model == DEMO:
        return demo_model()
    if model == DEFAULT_MODEL.name:
        return _default_folder(download)
    folder = Path(model)
    if folder.is_file():
        if not is_gguf(folder):
            raise ModelNotFound(f"model {model!r} is a file: {FOLDER_ADVICE}")
        return folder
    if not folder.is_dir():
        if folder.exists() or download is None or model.count("/") != 1 or model.startswith((".", "/")):
            raise ModelNotFound(f"model {model!r}: no such folder, and not a hub name (owner/name)")
        folder = download(model)
    return folder if FolderFiles(folder).has_config else _gguf_in(folder, model)


def find_default(download: Callable[[str], Path] | None) -> tuple[Path, str]:
    """Return the folder of the default model and an empty text. If it cannot be fetched, return the folder of the
    bundled model and a warning with the reason.
    """
    try:
        return _default_folder(download), ""
    except ModelNotFound as error:
        advice = "`carousel fetch`, in a checkout also `make model`, tries again"
        return demo_model(), f"the small bundled demo model is served instead of the default one: {error}; {advice}"


def _default_folder(download: Callable[[str], Path] | None) -> Path:
    if DEFAULT_MODEL.is_fetched:
        return DEFAULT_MODEL.folder
    if download is None:
        raise ModelNotFound(f"model {DEFAULT_MODEL.name!r} has not been fetched")
    return download(DEFAULT_MODEL.name)


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
    files = sorted(file for file in folder.iterdir() if has_gguf_name(file) and not file.name.startswith(PROJECTOR))
    models = [file for file in files if not LATER_SHARD.search(file.name)]
    if len(models) > 1:
        names = ", ".join(file.name for file in models[:8])
        raise ModelNotFound(f"model {model!r} has {len(models)} GGUF files; serve one of them: {names}")
    if not models:
        is_name = model.lower().endswith("-gguf")
        advice = HUB_ADVICE if is_name else FOLDER_ADVICE
        raise ModelNotFound(f"model {model!r} has no {CONFIG_FILE} in {folder}: {advice}")
    return models[0]
