"""The plain-torch back end: oracle of the Triton kernels, baseline of the benchmarks, and what serves on a CPU.

In float32 on a CPU a row's result has the same bits whatever rows are computed with it, whatever the width of the
page table, in whatever chunks its sequence was prefilled, as a decode row or inside a chunk
(tests/kernels/test_invariance.py).
"""
