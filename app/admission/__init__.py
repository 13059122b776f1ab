"""Limits of clients: tenants and their keys, queues, rates, connections, CPU time of the API process."""
