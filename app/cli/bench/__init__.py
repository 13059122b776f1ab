"""`carousel bench`: measure a server under the workloads of published evaluations."""
