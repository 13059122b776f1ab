"""Loading of a model directory by its architecture."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from engine.execution.models.config import FAMILIES, DecoderConfig
from engine.execution.models.decoder import Decoder
from engine.execution.models.errors import ModelConfigError, ModelError
from engine.execution.models.interface import Model
from engine.execution.models.rope import check_rope_table
from engine.execution.models.sources import CheckpointSource, DummySource, Progress, WeightSource
from engine.execution.models.weights import load_weights
from kernels.interface import Kernels
from kernels.load import load as load_kernels

LOAD_FORMATS = ("safetensors", "dummy")


def load_model(
    path: Path,
    dtype: torch.dtype | None,
    device: torch.device,
    progress: Progress,
    load_format: str = "safetensors",
    kernels: Kernels | None = None,
    on_layer: Callable[[], None] = lambda: None,
) -> Model:
    """Load a model from a directory in Hugging Face layout.

    dtype: None for the checkpoint's own. progress: called with (bytes done, bytes in total). load_format: "safetensors"
    reads the safetensors files; "dummy" fills the shapes of config.json with seeded random numbers. kernels: provide
    the linear layers; None for those of `device`. on_layer: called for each layer of a forward pass that is computed
    operation by operation. Raises ModelError.
    """
    if load_format not in LOAD_FORMATS:
        raise ModelError(f"load_format must be one of {', '.join(LOAD_FORMATS)}, got {load_format!r}")
    config = read_config(path)
    architectures = [] if config.get("architectures") is None else config["architectures"]
    if not isinstance(architectures, list) or not all(isinstance(name, str) for name in architectures):
        raise ModelConfigError("architectures", architectures, "must be a list of class names")
    if not set(architectures) & set(FAMILIES):
        from engine.execution.models.fallback import load_fallback

        return load_fallback(path, config, dtype, device, progress, load_format, kernels, on_layer)
    decoder_config = DecoderConfig.from_hf(config)
    check_rope_table(decoder_config)
    dtype = dtype or decoder_config.dtype
    source: WeightSource = (
        DummySource(0, decoder_config.dtype) if load_format == "dummy" else CheckpointSource(path, progress)
    )
    with torch.inference_mode():
        weights = load_weights(decoder_config, source, dtype, device, kernels or load_kernels(device, dtype))
    return Decoder(decoder_config, weights, on_layer)


def read_config(path: Path) -> dict[str, Any]:
    """Return config.json of a model directory. Raises ModelError with the file."""
    file = path / "config.json"
    try:
        config = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{file}: cannot be read: {error}") from error
    if not isinstance(config, dict):
        raise ModelConfigError("(file)", config, "must be a JSON object")
    return config
