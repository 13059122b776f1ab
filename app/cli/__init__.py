"""The command line: serve, explain, usage, keys, bench."""
