"""Stored conversations: responses, their items, conversations and chat completions."""
