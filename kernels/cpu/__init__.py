"""CPU back end: the operations of `kernels.interface` in C++, compiled for the local processor.

`source` holds the C++ code, `library` compiles and loads it, and `backend` implements the interface. If the code cannot
be compiled, the torch references are used instead; they are slower but equally correct.
"""
