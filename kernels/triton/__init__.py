"""GPU back end: Triton kernels and their launchers, one file per operation."""
