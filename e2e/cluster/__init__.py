"""A real Kubernetes cluster on one Linux machine, made from pinned Go modules and Debian packages.

``python -m e2e.cluster up`` starts it, ``down`` removes every trace of it, ``e2e.cluster.api`` is what tests use.
"""
