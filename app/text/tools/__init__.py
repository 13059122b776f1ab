"""Tools that a model may call: definitions, how each model family writes calls, and parsers of these calls."""
