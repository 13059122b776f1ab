"""The torch references gathered into one back end."""

from __future__ import annotations

from kernels.reference.decode_attention import decode_attention, plan_decode
from kernels.reference.log_probs import log_probs
from kernels.reference.prefill_attention import prefill_attention
from kernels.reference.rms_norm import add_rms_norm, rms_norm
from kernels.reference.rope_and_cache import plan_rope, rope_and_cache, write_cache
from kernels.reference.sample import sample
from kernels.reference.silu_mul import silu_mul


class ReferenceKernels:
    """`kernels.interface.Kernels` in plain torch."""

    rms_norm = staticmethod(rms_norm)
    add_rms_norm = staticmethod(add_rms_norm)
    silu_mul = staticmethod(silu_mul)
    plan_rope = staticmethod(plan_rope)
    rope_and_cache = staticmethod(rope_and_cache)
    write_cache = staticmethod(write_cache)
    plan_decode = staticmethod(plan_decode)
    decode_attention = staticmethod(decode_attention)
    prefill_attention = staticmethod(prefill_attention)
    sample = staticmethod(sample)
    log_probs = staticmethod(log_probs)
