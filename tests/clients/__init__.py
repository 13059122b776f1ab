"""Clients of other projects, each in an environment of its own, against servers of this checkout."""
