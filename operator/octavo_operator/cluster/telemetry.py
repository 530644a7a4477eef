"""The operator's own metrics (`octavo_operator_*`)."""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram

API_REQUESTS = Counter(
    "octavo_operator_api_requests",
    "Calls to the API server by HTTP method (or review, discover), resource and status code ('none': no answer).",
    ["verb", "resource", "code"],
)
RECONCILES = Counter("octavo_operator_reconciles", "Reconciles by result: settled, requeued, failed.", ["result"])
RECONCILE_SECONDS = Histogram("octavo_operator_reconcile_seconds", "Wall time of one reconcile.")
QUEUE_DEPTH = Gauge("octavo_operator_queue_depth", "Keys that wait for a worker now.")
OBJECTS = Gauge("octavo_operator_cached_objects", "Objects in the caches by resource.", ["resource"])

WRITE_VERBS = frozenset({"POST", "PUT", "PATCH", "DELETE"})
"""Values of the `verb` label that change the cluster."""
