"""Loading of other causal language models, which transformers runs with paged attention in place of their own.

`transformers_model` wraps a loaded model; `fallback_check` verifies that it computes through paged attention alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from engine.execution.models.checkpoint import Checkpoint
from engine.execution.models.errors import ModelError, WeightsError
from engine.execution.models.fallback_check import (
    check_against_own_attention,
    discover_shape,
    refuse_config,
    unsupported_attention_error,
)
from engine.execution.models.safetensors_files import check_magnitude, largest_magnitude
from engine.execution.models.tensor_table import Progress
from engine.execution.models.transformers_model import ATTENTION, TransformersModel, paged_attention
from kernels.decoder import Linear
from kernels.interface import Kernels
from kernels.load import load as load_kernels

MAX_REASON = 300  # characters of an error message of transformers


class PackedModule(nn.Module):
    """Packed linear layer in the form of a torch module."""

    def __init__(self, packed: Linear) -> None:
        super().__init__()
        self._packed = packed

    def forward(self, x: Tensor) -> Tensor:
        """Map x[..., K] to [..., N]."""
        return self._packed(x.reshape(-1, x.shape[-1])).view(*x.shape[:-1], -1)


def load_fallback(
    path: Path,
    checkpoint: Checkpoint,
    config: Mapping[str, Any],
    dtype: torch.dtype | None,
    device: torch.device,
    progress: Progress,
    load_format: str,
    kernels: Kernels | None,
    on_layer: Callable[[], None],
    max_magnitude: float,
) -> TransformersModel:
    """Load a model through transformers and verify its paged attention.

    Raises ModelError if transformers cannot load the directory, if the verification fails, or if a weight is not finite
    or larger than `max_magnitude`.
    """
    # Imported late: importing transformers takes seconds, which models of the own decoder do not need.
    from transformers import AttentionInterface

    refuse_config(config)
    AttentionInterface.register(ATTENTION, paged_attention)
    total = 0 if load_format == "dummy" else checkpoint.size()
    progress(0, total)
    name = str(next(iter(config.get("architectures") or ()), path))
    causal_lm = _load_dummy(path, dtype) if load_format == "dummy" else _load_weights(path, name, dtype)
    for parameter_name, parameter in causal_lm.named_parameters():
        check_magnitude(path, parameter_name, largest_magnitude(parameter.contiguous()), max_magnitude)
    causal_lm = causal_lm.to(device).eval().requires_grad_(False)
    num_parameters = sum(parameter.numel() for parameter in causal_lm.parameters())
    _pack_linears(causal_lm, kernels or load_kernels(device, causal_lm.dtype))
    model = TransformersModel(causal_lm, discover_shape(causal_lm, config), num_parameters, on_layer)
    check_against_own_attention(model, causal_lm, config)
    progress(total, total)
    return model


def _load_weights(path: Path, name: str, dtype: torch.dtype | None) -> Any:
    from transformers import AutoModelForCausalLM

    try:
        causal_lm, info = AutoModelForCausalLM.from_pretrained(
            path,
            dtype=dtype or "auto",
            attn_implementation=ATTENTION,
            local_files_only=True,
            trust_remote_code=False,  # without asking for confirmation
            use_safetensors=True,
            output_loading_info=True,
        )
    except Exception as error:  # each model's code raises errors of its own
        if error.args == (ATTENTION,):  # looked up by a class with its own table of attention functions
            raise unsupported_attention_error(name) from error
        raise ModelError(f"{path}: transformers cannot load this model: {_reason(error)}") from error
    for problem in ("missing_keys", "mismatched_keys", "unexpected_keys"):
        if info[problem]:
            examples = ", ".join(str(key) for key in sorted(info[problem], key=str)[:5])
            raise WeightsError(f"{path}: {len(info[problem])} {problem.replace('_', ' ')}: {examples}")
    return causal_lm


def _reason(error: Exception) -> str:
    """Return one sentence on the cause of a loading error, with a solution."""
    import transformers

    message = str(error).strip()
    if "trust_remote_code" in message:
        return (
            "it needs custom code, which this server does not run; use a version of the model whose architecture "
            "is part of transformers"
        )
    if "does not recognize this architecture" in message:
        return (
            f"transformers {transformers.__version__} does not support its model_type; install a version that does, "
            "or choose another model"
        )
    line = " ".join(message.split())[:MAX_REASON]
    if isinstance(error, KeyError | TypeError | AttributeError):
        return f"its config.json does not match its architecture ({line}); compare it with that of the original model"
    return line or type(error).__name__


def _load_dummy(path: Path, dtype: torch.dtype | None) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM

    # Random weights come from torch's global generator here; its state is restored afterwards.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        try:
            config = AutoConfig.from_pretrained(path, local_files_only=True, trust_remote_code=False)
            return AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=ATTENTION)
        except Exception as error:  # each model's code raises errors of its own
            raise ModelError(f"{path}: transformers cannot create this model: {_reason(error)}") from error


def _pack_linears(model: nn.Module, kernels: Kernels) -> None:
    """On a CPU, replace each plain linear layer by a packed one, one at a time."""
    head = getattr(model, "get_output_embeddings", lambda: None)()
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            # Exactly nn.Linear: a subclass computes something else.
            if type(child) is nn.Linear and child.weight.device.type == "cpu":
                bias = dict(child.named_parameters(recurse=False)).get("bias")
                pack = kernels.pack_head if child is head else kernels.pack_linear
                packed = pack(child.weight.data, None if bias is None else bias.data)
                setattr(parent, name, PackedModule(packed))
