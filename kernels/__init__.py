"""Operations of a language model with a paged KV cache: Triton and C++ kernels, tested against plain-torch references.

`load(device)` in `kernels.load` is the entry point. This package works on tensors only: it has no notion of
requests, models or text, and imports neither `engine` nor `app`. Triton is imported only when its back end is chosen.
"""
