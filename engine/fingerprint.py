"""Fingerprints of a loaded model (OpenAI's `system_fingerprint`), and of the keys and values that it computes here."""

from __future__ import annotations

import hashlib
from pathlib import Path

import torch

from engine.config import EngineConfig
from engine.model_files.interface import ModelFiles
from kernels.cpu.compiler import processor


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


def cache_fingerprint(model: str, device: torch.device) -> str:
    """Return a digest of all that the bits of keys and values depend on: the model, by its fingerprint, the code that
    computes it, the libraries, and the processor.
    """
    digest = hashlib.sha256(f"{model} {torch.__version__} {torch.version.cuda}".encode())
    digest.update(torch.cuda.get_device_name(device).encode() if device.type == "cuda" else processor().encode())
    root = Path(__file__).parents[1]
    for folder in ("kernels", "engine/execution"):
        for file in sorted((root / folder).rglob("*")):
            if file.suffix in (".py", ".cpp", ".h"):
                digest.update(file.read_bytes())
    return digest.hexdigest()[:24]
