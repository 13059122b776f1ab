"""Emulated CUDA device on a CPU: operations of torch and Triton launches are queued, and executed as late or as early
as a real device might. Operations that a device refuses raise `Refused` (docs/decisions/0026). `plugin` makes the
device visible to pytest."""
