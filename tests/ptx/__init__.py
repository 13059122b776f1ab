"""Emulator that runs Triton's PTX for compute capability 9.0 on a CPU, block by block. It checks properties that
results do not show: bounds, alignment, races in shared memory, reads before griddepcontrol.wait. Source: "Parallel
Thread Execution ISA", NVIDIA.

The threads of a block execute a program together, as numpy arrays with one element per thread. Instructions that the
kernels of this project do not use are refused. `plugin` makes pytest run every launch this way.
"""
