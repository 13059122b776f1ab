"""Names of GGUF files: which of several files is a model, in which quantisation, and in which shards.

Nothing is read: the names may be those of a folder or of a repository.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

# Words in the names of files that are no models: image encoders, statistics for quantisation, and adapters.
NO_MODEL = re.compile(r"(?:^|[-._])(?:mmproj|imatrix|lora|adapter)(?:[-._]|$)", re.IGNORECASE)
LATER_SHARD = re.compile(r"-(?!00001)\d{5}-of-\d{5}\.gguf$", re.IGNORECASE)


def has_gguf_name(name: str) -> bool:
    """Return whether a name or path is that of a GGUF file."""
    return name.lower().endswith(".gguf")


def model_files(paths: Iterable[str]) -> list[str]:
    """Return the sorted paths of those GGUF files that are models; of a model in shards the first."""
    return sorted(path for path in paths if has_gguf_name(path) and _is_model(path.rpartition("/")[2]))


def _is_model(name: str) -> bool:
    return NO_MODEL.search(name) is None and LATER_SHARD.search(name) is None
