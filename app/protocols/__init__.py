"""Requests and answers of each protocol. Only these files contain a protocol's JSON format."""
