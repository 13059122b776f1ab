"""Carousel: an LLM server for when humans are waiting."""

__version__ = "0.3.0"
