"""Pages of conversations in files, which survive the engine's process. Imports no torch."""
