"""Bugs that the suite must find: `make planted` plants each in a copy of the tree and runs tests that should fail."""
