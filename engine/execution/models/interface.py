"""What the engine asks of a model: a few numbers and three functions."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from engine.execution.cache import KVCache
from engine.execution.inputs import ModelInputs
from kernels.decoder import StepPass
from kernels.interface import Kernels
from kernels.slots import StepState


class Model(Protocol):
    """A causal language model over a paged cache. Knows nothing of requests or sampling."""

    @property
    def num_parameters(self) -> int: ...

    @property
    def is_own(self) -> bool:
        """Whether all of it is computed by our kernels."""

    @property
    def num_layers(self) -> int:
        """Layers that keep keys and values."""

    @property
    def num_heads(self) -> int:
        """Of queries."""

    @property
    def num_kv_heads(self) -> int: ...

    @property
    def head_dim(self) -> int: ...

    @property
    def vocab_size(self) -> int: ...

    @property
    def max_position(self) -> int:
        """Positions a sequence can have, prompt and output together."""

    @property
    def dtype(self) -> torch.dtype:
        """Of the hidden states."""

    @property
    def weights_dtype(self) -> torch.dtype:
        """Of the matrices: the hidden states', or the checkpoint's where the kernels compute with that."""

    @property
    def device(self) -> torch.device: ...

    def forward(self, inputs: ModelInputs, cache: KVCache, kernels: Kernels) -> Tensor:
        """Hidden states [T, H] of all rows, after the last norm; writes the rows' keys and values to the cache."""

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """hidden[R, H], rows of what `forward` returned -> logits [R, V] in any float."""

    def prepare_step(self, state: StepState, kernels: Kernels) -> StepPass | None:
        """Whole steps in one go, to the bit what comes of the functions above and `Kernels.sample`. None: not of this
        model with these kernels."""
