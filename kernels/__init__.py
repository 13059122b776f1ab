"""Operations a paged-cache language model needs: Triton kernels, and the plain-torch references they are held against.

`load(device)` in `kernels.interface` is the way in. This package knows tensors only: nothing of requests, models or
text, and it imports neither `engine` nor `app`. Triton is imported when its back end is chosen, and not before.
"""
