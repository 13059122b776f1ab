"""Text and tokens: tokenizers, chat templates, detokenization, stop strings."""
