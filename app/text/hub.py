"""Download of models from the Hugging Face hub into its cache, by the hub's own client, with its progress bars.

Without a connection, files of earlier downloads are used.
"""

from __future__ import annotations

import glob
from dataclasses import dataclass
from pathlib import Path

from app.text.hub_name import HubName, NoSuchFile

WEIGHTS = "*.safetensors"
TEXT_FILES = ["*.json", "*.jinja", "*.model", "*.tiktoken", "merges.txt", "vocab.txt"]


class HubError(Exception):
    """A model cannot be fetched; the message is one line."""


@dataclass(frozen=True)
class _Listing:
    """Paths of a repository's files. failure: reason for which they are those of an earlier download."""

    paths: list[str]
    failure: str = ""


def download(name: HubName, revision: str | None, *, has_weights: bool = True) -> Path:
    """Return the GGUF file of `name`, of several shards the first, or the folder of a model in safetensors; fetched
    first if necessary. Raises `HubError`.

    revision: branch, tag or commit; None: the default branch. has_weights: whether a folder's weights are fetched too.
    A GGUF file has them beside the tokenizer.
    """
    from huggingface_hub import snapshot_download

    listing = _list(name.repository, revision)
    try:
        files = name.gguf_files(listing.paths)
    except NoSuchFile as error:
        if listing.failure:
            raise HubError(f"the earlier download {error} (no list of the hub's files: {listing.failure})") from None
        raise HubError(f"the repository {error}") from None
    patterns = [glob.escape(file) for file in files] or [*TEXT_FILES, *([WEIGHTS] if has_weights else [])]
    try:
        folder = snapshot_download(
            name.repository, revision=revision, allow_patterns=patterns, local_files_only=bool(listing.failure)
        )
    except Exception as error:  # also errors of the client's HTTP library, which differs between its versions
        raise _cannot_fetch(_first_line(error)) from error
    return Path(folder, files[0]) if files else Path(folder)


def _list(repository: str, revision: str | None) -> _Listing:
    """Return the repository's files, as the hub lists them, or those of an earlier download. Raises `HubError`."""
    from huggingface_hub import HfApi, snapshot_download

    try:
        found = HfApi().model_info(repository, revision=revision).siblings or []
        return _Listing([file.rfilename for file in found])
    except Exception as error:  # as above
        reason = _first_line(error)
    try:
        folder = Path(snapshot_download(repository, revision=revision, allow_patterns=[], local_files_only=True))
    except (OSError, ValueError):  # nothing was fetched before, or the name is invalid
        raise _cannot_fetch(reason) from None
    paths = [file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file()]
    return _Listing(paths, reason)


def _cannot_fetch(reason: str) -> HubError:
    return HubError(f"no such folder, and it cannot be fetched from the hub: {reason}")


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
