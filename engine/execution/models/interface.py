"""Interface between the engine and a model: sizes and three functions."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from engine.execution.cache import CacheSpec, KVCache
from engine.execution.inputs import ModelInputs
from kernels.decoder import StepPass
from kernels.interface import Kernels
from kernels.slots import StepState


class Model(Protocol):
    """Causal language model over a paged cache, independent of requests and sampling."""

    @property
    def num_parameters(self) -> int: ...

    @property
    def is_native(self) -> bool:
        """Return whether this project's kernels compute the whole model."""

    @property
    def variant(self) -> str:
        """Return the choice that options made among the numbers of the checkpoint; empty if it has no such choice."""

    @property
    def num_heads(self) -> int:
        """Return the number of query heads."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def max_position(self) -> int:
        """Return the maximum positions of a sequence, prompt and output together."""

    @property
    def dtype(self) -> torch.dtype:
        """Return the dtype of the hidden states."""

    @property
    def weights_dtype(self) -> torch.dtype:
        """Return the dtype of the matrices: that of the hidden states or, if supported, of the checkpoint."""

    def cache_spec(self) -> CacheSpec:
        """Return the shapes of the keys and values of all layers."""

    def default_cache_dtype(self) -> torch.dtype:
        """Return the dtype for keys and values that are stored with the precision of the checkpoint."""

    @property
    def device(self) -> torch.device: ...

    def forward(self, inputs: ModelInputs, cache: KVCache, kernels: Kernels) -> Tensor:
        """Return hidden states [T, H] of all rows, after the last norm.

        Writes the rows' keys and values to the cache.
        """

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """Return logits [R, V] of any float dtype for hidden[R, H], rows of the result of `forward`."""

    def prepare_step(self, state: StepState, kernels: Kernels) -> StepPass | None:
        """Return a function that runs whole steps in one call, or None if this model and kernels have none.

        Its results are bit-identical to those of the functions above and `Kernels.sample`.
        """
