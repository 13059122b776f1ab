"""Fingerprint of a loaded model (OpenAI's `system_fingerprint`)."""

from __future__ import annotations

import hashlib
from pathlib import Path

from engine.config import EngineConfig

SAMPLES, SAMPLE_BYTES = 64, 4096  # of each weight file, evenly spread: reading all of it would take seconds


def fingerprint(config: EngineConfig, dtype: str, kernels: str) -> str:
    """Return `fp_` and 12 hex digits of a digest of the checkpoint's configuration, its weights and their quantisation,
    the dtypes of computation and cache, and the kernels. Of each weight file it reads the size, the header and samples.
    """
    # A requested dtype of float32 keeps 15 bits of the rows of quantised matrices, auto 8.
    arithmetic = f"{dtype} {config.dtype} {config.quantization}"
    digest = hashlib.sha256(f"{arithmetic} {config.kv_cache_dtype} {kernels} {config.load_format}".encode())
    folder = Path(config.model)
    for file in sorted({*folder.glob("config.json"), *folder.glob("*.safetensors")}):
        size = file.stat().st_size
        digest.update(f"{file.name} {size}".encode())
        with file.open("rb") as stream:
            for offset in sorted({size * sample // SAMPLES for sample in range(SAMPLES)}):
                stream.seek(offset)
                digest.update(stream.read(SAMPLE_BYTES))
    return f"fp_{digest.hexdigest()[:12]}"
