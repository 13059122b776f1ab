"""Execution of batches in torch, independent of scheduling."""
