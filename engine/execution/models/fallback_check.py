"""Verification of models run by transformers: settings, attention shape, and a comparison with their own attention.

Models differ in ways that no configuration key reveals: custom masks, positions taken from another source than
`position_ids`, biases on scores. Each model is therefore run once on a few tokens both ways. Our way uses the engine's
batch shape: several sequences in one flat batch, a prompt in chunks, decode rows beside them. The model is refused if
the logits differ.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from engine.execution.cache import KVCache
from engine.execution.inputs import ModelInputs
from engine.execution.models.errors import ModelConfigError, ModelError
from engine.execution.models.fallback_lengths import longest_probe, named_lengths
from engine.execution.models.quantized.fields import ALTERNATIVES
from engine.execution.models.rope_parameters import rope_entries, rope_kind, text_sections
from engine.execution.models.transformers_model import STEP_ARGUMENT, AttentionShape, TransformersModel, run_body
from engine.model_files.folder import QUANTIZATION_KEYS
from kernels.load import load as load_kernels

log = logging.getLogger("carousel.engine")

PROBE_TOKENS = 24
PROBE_MARGIN_TOKENS = 8  # of a probe beyond the length with the effect that it must reveal
PROBE_PAGE_SIZE = 16
# Maximum difference of logits, relative to the largest logit. float32 leaves 1e-5, half precision a few percent; wrong
# positions or masks are far beyond both.
TOLERANCE = {torch.float32: 1e-3, torch.float16: 0.05, torch.bfloat16: 0.1}

# Keys of a configuration that must be absent or false, and the reason.
REFUSED_SETTINGS = {
    **dict.fromkeys(QUANTIZATION_KEYS, f"quantised weights of this architecture are not supported; {ALTERNATIVES}"),
    "attention_chunk_size": "is not supported by paged attention",
    "is_encoder_decoder": "only decoders are supported",
}


def cannot_serve(name: str, reason: str) -> ModelError:
    """Return the error for a model that transformers can run but this server cannot."""
    return ModelError(
        f"{name} cannot be served: {reason}; choose a model of the Llama, Mistral, Qwen2, Qwen3, SmolLM3, Phi-3 or "
        "Granite families, or one whose layers all attend through transformers' attention interface, such as Gemma 3 "
        "or OLMo 2"
    )


def unsupported_attention_error(name: str) -> ModelError:
    """Return the error for a model with its own attention functions."""
    return cannot_serve(name, "not all of its layers attend through transformers' attention interface")


def refuse_config(config: Mapping[str, Any]) -> None:
    """Raise ModelConfigError for settings with an effect that a probe of a few tokens cannot reveal."""
    for key, rope in rope_entries(config):
        if any(word in str(rope_kind(rope)) for word in ("dynamic", "longrope")) or rope_kind(rope) == "su":
            reason = (
                "its frequencies depend on the longest sequence of a batch, so other requests would change an answer; "
                "choose a version of the model without it, such as one for a shorter context"
            )
            raise ModelConfigError(key, rope, reason)
    for prefix, section in text_sections(config):
        for name, reason in REFUSED_SETTINGS.items():
            if section.get(name):
                raise ModelConfigError(prefix + name, section[name], reason)
        unknown = set(section.get("layer_types") or ()) - {"full_attention", "sliding_attention"}
        if unknown:
            kinds = ", ".join(sorted(map(str, unknown)))
            reason = (
                f"layers of type {kinds} are not supported over a paged cache; choose a model whose layers are all "
                "full_attention or sliding_attention"
            )
            raise ModelConfigError(f"{prefix}layer_types", section["layer_types"], reason)


@dataclass(frozen=True)
class ShapeRecorder:
    """Step without attention that records the shapes of each call: layer -> (Hq, Hkv, D, window)."""

    calls: dict[int, tuple[int, int, int, int]] = field(default_factory=dict)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float, window: int) -> Tensor:
        if layer in self.calls:
            raise ModelError(f"layer {layer} attends twice, but the cache has room for its keys and values only once")
        if k.shape != v.shape or k.shape[2] != q.shape[2]:
            shapes = (tuple(x.shape[1:]) for x in (q, k, v))
            raise ModelError(
                "layer {} has queries {}, keys {} and values {}, whose sizes must agree".format(layer, *shapes)
            )
        self.calls[layer] = (q.shape[1], k.shape[1], q.shape[2], window)
        return torch.zeros_like(q)


@torch.inference_mode()
def discover_shape(causal_lm: Any, config: Mapping[str, Any]) -> AttentionShape:
    """Run two tokens through the model and return the shape of its attention calls."""
    recorder = ShapeRecorder()
    name = type(causal_lm).__name__
    tokens = torch.zeros(2, dtype=torch.int64, device=causal_lm.device)
    try:
        run_body(causal_lm.get_decoder(), tokens, torch.arange(2, device=tokens.device), recorder)
    except ModelError as error:
        raise cannot_serve(name, str(error)) from error
    except Exception as error:  # each model's code raises errors of its own
        if error.args == (STEP_ARGUMENT,):
            raise unsupported_attention_error(name) from error
        raise cannot_serve(
            name, "it needs inputs other than tokens and positions, such as custom masks or states"
        ) from error
    if not recorder.calls or sorted(recorder.calls) != list(range(len(recorder.calls))):
        raise unsupported_attention_error(name)
    kinds = {call[:3] for call in recorder.calls.values()}
    if len(kinds) != 1:
        shapes = f"its layers have different shapes (query heads, kv heads, head size): {sorted(kinds)}"
        raise cannot_serve(name, shapes)
    ((num_heads, num_kv_heads, head_dim),) = kinds
    windows = tuple(recorder.calls[layer][3] for layer in range(len(recorder.calls)))
    _check_windows(config, windows, name)
    return AttentionShape(len(windows), num_heads, num_kv_heads, head_dim, windows)


def _check_windows(config: Mapping[str, Any], windows: tuple[int, ...], name: str) -> None:
    """Raise ModelConfigError if the windows used by the layers do not match the configuration.

    A window longer than the probe would not show in the comparison.
    """
    for prefix, section in text_sections(config):
        layer_types = section.get("layer_types")
        if layer_types is not None:
            if [kind == "sliding_attention" for kind in layer_types] != [window > 0 for window in windows]:
                raise ModelConfigError(f"{prefix}layer_types", layer_types, f"{name} uses windows {windows} instead")
        elif section.get("sliding_window") and section.get("use_sliding_window", True) and not any(windows):
            reason = f"{name} does not pass it to its attention function"
            raise ModelConfigError(f"{prefix}sliding_window", section["sliding_window"], reason)


@torch.inference_mode()
def check_against_own_attention(model: TransformersModel, causal_lm: Any, config: Mapping[str, Any]) -> None:
    """Raise ModelError if paged logits differ from those with the model's own attention.

    Compares a few tokens at the first positions and at the last ones, and a sequence longer than any length in the
    configuration, as far as the size limit of a probe allows.
    """
    _compare(model, causal_lm, min(PROBE_TOKENS, model.max_position), 0)
    if model.max_position > PROBE_TOKENS:  # frequencies that change at any earlier position have changed by then
        _compare(model, causal_lm, PROBE_TOKENS, model.max_position - PROBE_TOKENS)
    lengths = named_lengths(config, model.max_position)
    max_tokens = longest_probe(model.num_parameters)
    probe_lengths = [
        length + PROBE_MARGIN_TOKENS
        for length in lengths.values()
        if PROBE_TOKENS < length + PROBE_MARGIN_TOKENS <= max_tokens
    ]
    if probe_lengths:
        _compare(model, causal_lm, min(max(probe_lengths), model.max_position), 0)
    for key, length in lengths.items():
        is_verified = length + PROBE_MARGIN_TOKENS <= max_tokens or length in model.windows or "position" in key
        if not is_verified:
            log.warning(
                "%s = %d in config.json is too long for the comparison with transformers at startup, which uses at "
                "most %d tokens for a model of this size; longer texts are not verified",
                *(key, length, max_tokens),
            )


def _compare(model: TransformersModel, causal_lm: Any, num_tokens: int, offset: int) -> None:
    """Compare the logits after two rows of tokens. offset: the first position of the second row."""
    vocab_size, name = model.vocab_size, type(causal_lm).__name__
    tokens = torch.arange(1, 2 * num_tokens + 1, device=model.device).view(2, -1) * 37 % vocab_size
    try:
        ours, expected = _paged_logits(model, tokens, offset), _own_logits(causal_lm, tokens, offset)
    except Exception as error:  # each model's code raises errors of its own
        raise cannot_serve(name, f"running it on {num_tokens} tokens from position {offset} failed") from error
    difference = float((ours - expected).abs().max() / expected.abs().max().clamp_min(1e-6))
    limit = TOLERANCE[model.dtype]
    if not difference <= limit:  # NaN is a difference too
        where = f"{num_tokens} tokens" + (f" from position {offset}" if offset else "")
        raise cannot_serve(
            name,
            f"over a paged cache its logits after {where} differ from its own by {difference:.3g} of the largest "
            f"(limit {limit}), so this server does not compute its attention or its positions correctly",
        )


def _own_logits(causal_lm: Any, tokens: Tensor, offset: int) -> Tensor:
    """Return logits [2, V] after each row of tokens[2, n] alone, with transformers' attention."""
    own_implementation = causal_lm.config._attn_implementation
    positions = torch.arange(tokens.shape[1], device=tokens.device)
    # Logits of all tokens of a long probe would take gigabytes.
    supports_logits_to_keep = "logits_to_keep" in inspect.signature(causal_lm.forward).parameters
    options = {"use_cache": False} | ({"logits_to_keep": 1} if supports_logits_to_keep else {})
    causal_lm.set_attn_implementation("eager")
    try:
        outputs = [
            causal_lm(input_ids=row[None], position_ids=(positions + first)[None], **options)
            for row, first in zip(tokens, (0, offset), strict=True)
        ]
    finally:
        causal_lm.set_attn_implementation(own_implementation)
    return torch.stack([output.logits[0, -1] for output in outputs]).float()


def _paged_logits(model: TransformersModel, tokens: Tensor, offset: int) -> Tensor:
    """Return logits [2, V] after tokens[2, n], computed over a paged cache.

    Row 0 runs in two chunks, beside row 1; the last token of each is a decode row. offset: the position of row 1's
    first token; row 0 begins at 0.
    """
    n, device = tokens.shape[1], model.device
    pages = -(-n // PROBE_PAGE_SIZE)
    kernels = load_kernels(device, model.dtype)
    cache = KVCache.allocate(2 * pages, PROBE_PAGE_SIZE, model.cache_spec(), model.dtype, device)
    table = torch.arange(2 * pages, device=device).view(2, -1).flip(1)

    def slots(row: int, begin: int, end: int) -> Tensor:
        positions = torch.arange(begin, end, device=device)
        return table[row, positions // PROBE_PAGE_SIZE] * PROBE_PAGE_SIZE + positions % PROBE_PAGE_SIZE

    def run(spans: list[tuple[int, int, int]], decodes: int) -> Tensor:
        """Compute spans of (row, begin, end) and return the hidden states of their last tokens."""
        lengths = [end - begin for _, begin, end in spans]
        starts = [sum(lengths[:index]) for index in range(len(lengths) + 1)]
        rows = torch.tensor([row for row, _, _ in spans], device=device)
        int_table = table[rows].to(torch.int32)
        contexts = [end for _, _, end in spans]
        inputs = ModelInputs(
            token_ids=torch.cat([tokens[row, begin:end] for row, begin, end in spans]),
            positions=torch.cat([torch.arange(begin, end, device=device) + row * offset for row, begin, end in spans]),
            slot_mapping=torch.cat([slots(*span) for span in spans]),
            num_decodes=decodes,
            decode_page_table=int_table[:decodes],
            decode_context_lens=torch.tensor(contexts[:decodes], dtype=torch.int32, device=device),
            prefill_page_table=int_table[decodes:],
            prefill_query_starts=tuple(start - decodes for start in starts[decodes:]),
            prefill_context_lens=tuple(contexts[decodes:]),
            logit_rows=torch.tensor(starts[1:], device=device) - 1,
        )
        return model.forward(inputs, cache, kernels)[inputs.logit_rows]

    run([(0, 0, 9)], 0)
    run([(0, 9, n - 1), (1, 0, 5)], 0)
    first = run([(0, n - 1, n), (1, 5, n - 1)], 1)[:1]
    second = run([(1, n - 1, n)], 1)
    return model.compute_logits(torch.cat((first, second)))
