"""Models: what turns a batch of tokens and a cache into hidden states and logits. Knows nothing of requests or
scheduling.
"""

from engine.execution.models.errors import ModelConfigError, ModelError, WeightsError
from engine.execution.models.interface import Model
from engine.execution.models.registry import load_model

__all__ = ["Model", "ModelConfigError", "ModelError", "WeightsError", "load_model"]
