"""Drafts: guesses of the next tokens of a sequence, from its own text. Pure Python over integers."""
