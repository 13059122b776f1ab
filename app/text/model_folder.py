"""Location of the model: a folder in Hugging Face layout, or a hub name that is downloaded into one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

GGUF_ADVICE = (
    "GGUF files are not supported; serve the folder or hub name that they were made from, or convert them with "
    "transformers (from_pretrained with gguf_file=FILE and GgufConfig(dequantize=True), then save_pretrained)"
)
FOLDER_ADVICE = "a folder with config.json and safetensors files, or a hub name (owner/name), is needed"


class ModelNotFound(Exception):
    """No model can be served under the given name; the message names it and a remedy."""


def find_folder(model: str, download: Callable[[str], Path] | None) -> Path:
    """Return the folder of `model`. `download(name)` fetches a model from the hub and returns its folder; it is called
    for hub names that are not a local folder. Raises `ModelNotFound`.
    """
    folder = Path(model)
    if folder.is_file():
        raise ModelNotFound(f"model {model!r} is a file: {GGUF_ADVICE if _is_gguf(folder) else FOLDER_ADVICE}")
    if not folder.is_dir():
        if folder.exists() or download is None or model.count("/") != 1 or model.startswith((".", "/")):
            raise ModelNotFound(f"model {model!r}: no such folder, and not a hub name (owner/name)")
        folder = download(model)
    if not (folder / "config.json").exists():
        is_gguf = model.lower().endswith("-gguf") or any(_is_gguf(file) for file in folder.iterdir())
        raise ModelNotFound(
            f"model {model!r} has no config.json in {folder}: {GGUF_ADVICE if is_gguf else FOLDER_ADVICE}"
        )
    return folder


def download_model(name: str) -> Path:
    """Download a model from the Hugging Face hub, with the hub's progress bars. Raises `ModelNotFound`."""
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
