"""Continuous batching over a paged KV cache, independent of HTTP, text and event loops."""
