"""Store: state of a server that survives its process."""
