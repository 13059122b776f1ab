"""One request on its way through the server, from engine events to its stream log."""
