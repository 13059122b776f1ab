"""Scheduling in pure Python over integers: no torch, no clock of its own, no randomness of its own."""
