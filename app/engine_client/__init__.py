"""The API process's side of the engine: its process, restarts, requests in flight."""
