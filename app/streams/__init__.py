"""Stream logs, their readers, and the timeline of a request."""
