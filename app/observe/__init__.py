"""Metrics, logs, metering and the live feed of the engine page."""
