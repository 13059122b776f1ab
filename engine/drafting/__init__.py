"""Drafts: guesses of the next tokens of a sequence. Pure Python over integers."""
