"""Plain-torch back end: oracle of the compiled kernels, baseline of the benchmarks, and CPU fallback.

In float32 on a CPU a row's bits do not depend on the other rows, the width of the page table, the chunks in which its
sequence was prefilled, or whether it is computed as a decode row or in a chunk (tests/kernels/test_invariance.py).
"""
