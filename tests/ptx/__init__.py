"""Runs the PTX that Triton makes for compute capability 9.0 on a CPU, block by block, and checks what no result shows:
bounds, alignment, races in shared memory, reads before a kernel's turn. After "Parallel Thread Execution ISA", NVIDIA.

A block's threads go through a program together, as numpy arrays with an element each. It knows the instructions that
the kernels of this project are made of, and refuses others. `plugin` has pytest run every launch this way.
"""
