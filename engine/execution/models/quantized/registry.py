"""Choice of a format by the quant_method of a config.json."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from engine.execution.models.errors import ModelConfigError
from engine.execution.models.quantized.awq import AWQ
from engine.execution.models.quantized.compressed_tensors import CompressedTensors
from engine.execution.models.quantized.fields import ALTERNATIVES
from engine.execution.models.quantized.fp8 import FP8
from engine.execution.models.quantized.gptq import GPTQ
from engine.execution.models.quantized.interface import Format
from engine.model_files.folder import QUANTIZATION_KEYS

METHODS: dict[str, Callable[[str, Any], Format]] = {
    "awq": AWQ.parse,
    "gptq": GPTQ.parse,
    "compressed-tensors": CompressedTensors.parse,
    "fp8": FP8.parse,
}


def find_format(config: Mapping[str, Any]) -> Format | None:
    """Return the format of the quantised weights of a config.json; None if it describes none.

    Raises ModelConfigError, with key and value, for a description that is not supported.
    """
    found = {key: value for key in QUANTIZATION_KEYS if (value := config.get(key))}
    if not found:
        return None
    key, content = next(iter(found.items()))
    if len(found) > 1 and content != found[QUANTIZATION_KEYS[1]]:
        raise ModelConfigError(
            QUANTIZATION_KEYS[1], found[QUANTIZATION_KEYS[1]], f"contradicts {QUANTIZATION_KEYS[0]}; keep one of them"
        )
    if not isinstance(content, Mapping):
        raise ModelConfigError(key, content, "must be a JSON object")
    method = content.get("quant_method")
    parse = METHODS.get(method) if isinstance(method, str) else None
    if parse is None:
        reason = f"must be one of {', '.join(METHODS)}; {ALTERNATIVES}"
        raise ModelConfigError(f"{key}.quant_method", method, reason)
    return parse(key, content)
