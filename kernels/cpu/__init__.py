"""What serves on a CPU: the operations of `kernels.interface` in C++, compiled for the processor at hand.

`source` holds them, `library` compiles and loads them, `backend` is what the engine sees. Where they cannot be compiled
the torch references serve instead, slower and no less right.
"""
