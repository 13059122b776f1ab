"""A GPU that is pretended on a CPU: what torch and Triton are told to do on a CUDA device is queued, and done as late
or as soon as a device might. What a device refuses is refused (docs/decisions/0026). `plugin` has pytest find it.
"""
