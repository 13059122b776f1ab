"""Loading of a model by its architecture."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from engine.execution.models.checkpoint import Checkpoint, open_checkpoint
from engine.execution.models.checksums import ChecksumCheck
from engine.execution.models.config import DecoderConfig
from engine.execution.models.decoder import Decoder
from engine.execution.models.errors import ModelConfigError, ModelError, WeightsError
from engine.execution.models.families import FAMILIES
from engine.execution.models.interface import Model
from engine.execution.models.rope import check_rope_table
from engine.execution.models.sources import DummySource, WeightSource
from engine.execution.models.tensor_table import Progress
from engine.execution.models.weights import load_weights
from engine.host import return_free_memory
from engine.model_files.errors import ModelFileError
from engine.model_files.interface import ModelFiles
from kernels.interface import Kernels
from kernels.load import load as load_kernels

log = logging.getLogger("carousel.engine")

LOAD_FORMATS = ("safetensors", "dummy")


def load_model(
    files: ModelFiles,
    dtype: torch.dtype | None,
    device: torch.device,
    progress: Progress,
    load_format: str = "safetensors",
    kernels: Kernels | None = None,
    on_layer: Callable[[], None] = lambda: None,
    checksum_progress: Progress = lambda done, total: None,
    max_len: int | None = None,
) -> Model:
    """Load a model and check its weights.

    dtype: None for the checkpoint's own. progress: called with (bytes done, bytes in total). load_format: "safetensors"
    reads the safetensors files; "dummy" fills the shapes of config.json with seeded random numbers. kernels: provide
    the linear layers; None for those of `device`. on_layer: called for each layer of a forward pass that is computed
    operation by operation. checksum_progress: as `progress`, for digests that take longer than loading. max_len:
    longest sequence that is served; None: the model's positions. Raises ModelError.
    """
    if load_format not in LOAD_FORMATS:
        raise ModelError(f"load_format must be one of {', '.join(LOAD_FORMATS)}, got {load_format!r}")
    config = read_config(files)
    checkpoint = open_checkpoint(files, config)
    architectures = [] if config.get("architectures") is None else config["architectures"]
    if not isinstance(architectures, list) or not all(isinstance(name, str) for name in architectures):
        raise ModelConfigError("architectures", architectures, "must be a list of class names")
    is_native = bool(set(architectures) & set(FAMILIES))
    with ChecksumCheck(_weight_files(checkpoint, load_format)) as checksums:
        if is_native:
            model: Model = _load_native(
                checkpoint, config, dtype, device, progress, load_format, kernels, on_layer, checksums, max_len
            )
        else:
            from engine.execution.models.fallback import load_fallback

            model = load_fallback(
                files.path,
                checkpoint,
                config,
                dtype,
                device,
                progress,
                load_format,
                kernels,
                on_layer,
                checksums.max_magnitude,
            )
        checksums.finish(checksum_progress)
    return_free_memory()  # tens of megabytes of rows that were unpacked
    if load_format != "dummy":
        log.info("%s", checksums.summary)
    return model


def _load_native(
    checkpoint: Checkpoint,
    config: Mapping[str, Any],
    dtype: torch.dtype | None,
    device: torch.device,
    progress: Progress,
    load_format: str,
    kernels: Kernels | None,
    on_layer: Callable[[], None],
    checksums: ChecksumCheck,
    max_len: int | None,
) -> Decoder:
    decoder_config = DecoderConfig.from_hf(config, max_len)
    check_rope_table(decoder_config)
    if decoder_config.rope.kind == "longrope":
        log.info("%s", _longrope_choice(decoder_config, max_len))
    dtype = dtype or decoder_config.dtype
    source: WeightSource = (
        DummySource(0, decoder_config.dtype)
        if load_format == "dummy"
        else checkpoint.source(progress, checksums.max_magnitude)
    )
    with torch.inference_mode():
        weights = load_weights(decoder_config, source, dtype, device, kernels or load_kernels(device, dtype))
    return Decoder(decoder_config, weights, on_layer)


def _longrope_choice(config: DecoderConfig, max_len: int | None) -> str:
    """Return one sentence on the factors of longrope that all sequences use, and on the option that chooses them."""
    original, served = config.rope.original_max_position, max_len or config.max_position
    if not config.rope.is_long:
        return (
            f"longrope: short factors, as --max-model-len {served} is within the model's original context, {original}"
        )
    return (
        f"longrope: long factors for texts of every length, as the server accepts {served} tokens and the model's "
        f"original context is {original}; --max-model-len {original} chooses the short factors"
    )


def _weight_files(checkpoint: Checkpoint, load_format: str) -> set[Path]:
    """Return the files with weights; none if they cannot be listed, which their loader reports."""
    if load_format == "dummy":
        return set()
    try:
        return checkpoint.files()
    except WeightsError:
        return set()


def read_config(files: ModelFiles) -> Mapping[str, Any]:
    """Return the content of config.json. Raises ModelError with the file."""
    try:
        document = files.config()
    except ModelFileError as error:
        raise ModelError(str(error)) from error
    if not document.exists:
        raise ModelError(f"{document.file}: cannot be read: no such file")
    return document.content
