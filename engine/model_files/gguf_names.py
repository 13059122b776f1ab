"""Names of GGUF files: which of several files is a model, in which quantisation, and in which shards.

Nothing is read: the names may be those of a folder or of a repository.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

# Words in the names of files that are no models: image encoders, statistics for quantisation, and adapters.
NO_MODEL = re.compile(r"(?:^|[-._])(?:mmproj|imatrix|lora|adapter)(?:[-._]|$)", re.IGNORECASE)
LATER_SHARD = re.compile(r"-(?!00001)\d{5}-of-\d{5}\.gguf$", re.IGNORECASE)
SHARD = re.compile(r"(-\d{5}-of-\d{5})?\.gguf$", re.IGNORECASE)
# Unsloth's dynamic quantisations begin with UD-, and are others than those without it.
QUANTIZATION = re.compile(
    r"(?<![A-Z0-9])((?:UD-)?(?:I?Q[1-8](?:_(?:\d|K|NL|XXS|XS|S|M|L|XL|XXL))+|TQ[12]_0|MXFP4(?:_MOE)?|BF16|FP?(?:16|32)))"
    r"(?![A-Z0-9])",
    re.IGNORECASE,
)
ALIASES = {"FP16": "F16", "FP32": "F32"}


def has_gguf_name(name: str) -> bool:
    """Return whether a name or path is that of a GGUF file."""
    return name.lower().endswith(".gguf")


def model_files(paths: Iterable[str]) -> list[str]:
    """Return the sorted paths of those GGUF files that are models; of a model in shards the first."""
    return sorted(path for path in paths if has_gguf_name(path) and _is_model(path.rpartition("/")[2]))


def _is_model(name: str) -> bool:
    return NO_MODEL.search(name) is None and LATER_SHARD.search(name) is None


def quantization(path: str) -> str:
    """Return the quantisation that a path names, in capitals, such as Q4_K_M or UD-Q4_K_XL; empty if it names none.

    The last one of the file's name counts, or else that of its folder.
    """
    folder, _, name = path.rpartition("/")
    for part in (SHARD.sub("", name), folder.rpartition("/")[2]):
        if found := QUANTIZATION.findall(part):
            return canonical(found[-1])
    return ""


def canonical(name: str) -> str:
    """Return the name of a quantisation in the form that `quantization` returns."""
    return ALIASES.get(name.upper(), name.upper())
