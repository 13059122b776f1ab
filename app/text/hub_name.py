"""Names of models on the Hugging Face hub, with a quantisation or a GGUF file, and the files that they choose.

The names are those that llama.cpp (`-hf`) and Ollama understand: `owner/name`, `owner/name:Q4_K_M`,
`owner/name:file.gguf`, and the same after `hf.co/`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.model_files.errors import ModelFileError
from engine.model_files.folder import CONFIG_FILE
from engine.model_files.gguf import shard_files
from engine.model_files.gguf_names import canonical, has_gguf_name, model_files, quantization

HUB_NAME = re.compile(r"(?:(?:hf\.co|huggingface\.co)/)?([^./:\s][^/:\s]*/[^/:\s]+)(?::(\S+))?")
MAX_LISTED = 40  # names in an error message
RECOMMENDED = "Q4_K_M"  # named as an example, as llama.cpp chooses it


class NoSuchFile(Exception):
    """A repository does not have the model. The message is a predicate, which ends with a remedy."""


@dataclass(frozen=True)
class HubName:
    """Repository, and the quantisation or the GGUF file that is chosen in it; empty if none is."""

    repository: str
    choice: str = ""

    @classmethod
    def parse(cls, text: str) -> HubName | None:
        """Return the parts of a name; None for a text that is none. A quantisation is in capitals.

        A name that ends as a file's is none: it is more likely a file that does not exist.
        """
        match = HUB_NAME.fullmatch(text)
        if match is None or has_gguf_name(match[1]):
            return None
        choice = match[2] or ""
        return cls(match[1], choice if has_gguf_name(choice) else canonical(choice))

    def __str__(self) -> str:
        return f"{self.repository}:{self.choice}" if self.choice else self.repository

    def gguf_files(self, paths: Sequence[str]) -> list[str]:
        """Return the GGUF file to fetch among the `paths` of the repository, with all its shards in order; none if the
        repository is to be fetched as a folder. Raises `NoSuchFile`.
        """
        models = model_files(paths)
        if self.choice:
            return _shards(self._chosen(models, paths), paths)
        if not models or (CONFIG_FILE in paths and any(path.endswith(".safetensors") for path in paths)):
            return []
        if len(models) > 1:
            labels = _labels(models)
            example = RECOMMENDED if RECOMMENDED in labels else labels[0]
            raise NoSuchFile(
                f"has {len(models)} GGUF models: {_listed(labels)}; choose one, for example `carousel serve "
                f"{self.repository}:{example}`"
            )
        return _shards(models[0], paths)

    def _chosen(self, models: Sequence[str], paths: Sequence[str]) -> str:
        if has_gguf_name(self.choice):
            wanted = self.choice.lower()
            found = [path for path in paths if path == self.choice] or [
                path for path in paths if wanted in (path.lower(), path.lower().rpartition("/")[2])
            ]
        else:
            found = [path for path in models if quantization(path) == self.choice]
        if len(found) == 1:
            return found[0]
        if found:
            raise NoSuchFile(f"has {len(found)} files {self.choice}; choose one of {_listed(found)}")
        if not models:
            raise NoSuchFile(f"has no GGUF models; `carousel serve {self.repository}` serves safetensors files")
        raise NoSuchFile(f"has no {self.choice}; choose one of {_listed(_labels(models))}")


def _shards(path: str, paths: Sequence[str]) -> list[str]:
    """Return a file, or all shards of its model. Raises `NoSuchFile` if the repository lacks one."""
    try:
        files = [file.as_posix() for file in shard_files(Path(path))]
    except ModelFileError as error:
        raise NoSuchFile(f"has {error}") from error
    if missing := sorted(set(files) - set(paths)):
        raise NoSuchFile(f"lacks {len(missing)} of {len(files)} shards: {_listed(missing)}")
    return files


def _labels(models: Sequence[str]) -> list[str]:
    """Return the choice of each model: its quantisation, or its path if that names none or that of several models."""
    names = [quantization(path) for path in models]
    return [name if name and names.count(name) == 1 else path for name, path in zip(names, models, strict=True)]


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - MAX_LISTED} more" if len(names) > MAX_LISTED else ""
    return ", ".join(name if name.isprintable() else repr(name) for name in names[:MAX_LISTED]) + more
