"""Loading of a model directory by its architecture."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from engine.execution.models.checksums import ChecksumCheck
from engine.execution.models.config import FAMILIES, DecoderConfig
from engine.execution.models.decoder import Decoder
from engine.execution.models.errors import ModelConfigError, ModelError, WeightsError
from engine.execution.models.interface import Model
from engine.execution.models.rope import check_rope_table
from engine.execution.models.safetensors_files import list_tensors
from engine.execution.models.sources import CheckpointSource, DummySource, Progress, WeightSource
from engine.execution.models.weights import load_weights
from kernels.interface import Kernels
from kernels.load import load as load_kernels

log = logging.getLogger("carousel.engine")

LOAD_FORMATS = ("safetensors", "dummy")


def load_model(
    path: Path,
    dtype: torch.dtype | None,
    device: torch.device,
    progress: Progress,
    load_format: str = "safetensors",
    kernels: Kernels | None = None,
    on_layer: Callable[[], None] = lambda: None,
    checksum_progress: Progress = lambda done, total: None,
) -> Model:
    """Load a model from a directory in Hugging Face layout, and check its weights.

    dtype: None for the checkpoint's own. progress: called with (bytes done, bytes in total). load_format: "safetensors"
    reads the safetensors files; "dummy" fills the shapes of config.json with seeded random numbers. kernels: provide
    the linear layers; None for those of `device`. on_layer: called for each layer of a forward pass that is computed
    operation by operation. checksum_progress: as `progress`, for digests that take longer than loading. Raises
    ModelError.
    """
    if load_format not in LOAD_FORMATS:
        raise ModelError(f"load_format must be one of {', '.join(LOAD_FORMATS)}, got {load_format!r}")
    config = read_config(path)
    architectures = [] if config.get("architectures") is None else config["architectures"]
    if not isinstance(architectures, list) or not all(isinstance(name, str) for name in architectures):
        raise ModelConfigError("architectures", architectures, "must be a list of class names")
    is_native = bool(set(architectures) & set(FAMILIES))
    with ChecksumCheck(_weight_files(path, load_format)) as checksums:
        if is_native:
            model: Model = _load_native(
                path, config, dtype, device, progress, load_format, kernels, on_layer, checksums
            )
        else:
            from engine.execution.models.fallback import load_fallback

            model = load_fallback(
                path, config, dtype, device, progress, load_format, kernels, on_layer, checksums.max_magnitude
            )
        checksums.finish(checksum_progress)
    if load_format != "dummy":
        log.info("%s", checksums.summary)
    return model


def _load_native(
    path: Path,
    config: dict[str, Any],
    dtype: torch.dtype | None,
    device: torch.device,
    progress: Progress,
    load_format: str,
    kernels: Kernels | None,
    on_layer: Callable[[], None],
    checksums: ChecksumCheck,
) -> Decoder:
    decoder_config = DecoderConfig.from_hf(config)
    check_rope_table(decoder_config)
    dtype = dtype or decoder_config.dtype
    source: WeightSource = (
        DummySource(0, decoder_config.dtype)
        if load_format == "dummy"
        else CheckpointSource(path, progress, checksums.max_magnitude)
    )
    with torch.inference_mode():
        weights = load_weights(decoder_config, source, dtype, device, kernels or load_kernels(device, dtype))
    return Decoder(decoder_config, weights, on_layer)


def _weight_files(path: Path, load_format: str) -> set[Path]:
    """Return the files with weights; none if they cannot be listed, which their loader reports."""
    if load_format == "dummy":
        return set()
    try:
        return {entry.file for entry in list_tensors(path).values()}
    except WeightsError:
        return set()


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
