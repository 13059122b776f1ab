"""Restrictions of a sequence's next token: grammars and reasoning limits."""
