"""Models: a batch of tokens and a cache in, hidden states and logits out. Independent of requests and scheduling."""

from engine.execution.models.errors import ModelConfigError, ModelError, WeightsError
from engine.execution.models.interface import Model
from engine.execution.models.registry import load_model

__all__ = ["Model", "ModelConfigError", "ModelError", "WeightsError", "load_model"]
