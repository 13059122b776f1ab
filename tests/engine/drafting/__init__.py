"""Tests of `engine.drafting`."""
