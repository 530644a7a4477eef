"""Octavo's Kubernetes operator: reads a model, plans it for the GPUs that are there, says why, and keeps it so."""
