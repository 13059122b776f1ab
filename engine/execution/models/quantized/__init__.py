"""Quantised safetensors checkpoints: one module for each format, a registry, and the weight source that uses them."""
