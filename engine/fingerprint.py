"""Fingerprint of a loaded model (OpenAI's `system_fingerprint`)."""

from __future__ import annotations

import hashlib

from engine.config import EngineConfig
from engine.model_files.interface import ModelFiles


def fingerprint(files: ModelFiles, config: EngineConfig, dtype: str, kernels: str, variant: str = "") -> str:
    """Return `fp_` and 12 hex digits of a digest of the checkpoint's configuration, its weights and their quantisation,
    the dtypes of computation and cache, the kernels, and the model's variant. Of the weights only samples are read.
    """
    # A requested dtype of float32 keeps 15 bits of the rows of quantised matrices, auto 8.
    arithmetic = f"{dtype} {config.dtype} {config.quantization}"
    digest = hashlib.sha256(f"{arithmetic} {config.kv_cache_dtype} {kernels} {config.load_format}{variant}".encode())
    for part in files.fingerprint_parts():
        digest.update(part)
    return f"fp_{digest.hexdigest()[:12]}"
