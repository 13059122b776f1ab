"""Continuous batching over a paged KV cache. Knows nothing of HTTP, of text, or of event loops."""
