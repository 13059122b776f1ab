"""Limits of clients: tenants and their keys, queues, rates, connections, bodies, CPU time of the API process."""
