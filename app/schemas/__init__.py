"""What clients send and get, one file per protocol. The only files that know a protocol's JSON."""
