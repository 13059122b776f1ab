"""Limits of waits in tests."""

from __future__ import annotations

# Longest wait for an event that must come. Only a hang takes so long, also on a busy machine.
HANG_SECONDS = 300.0
