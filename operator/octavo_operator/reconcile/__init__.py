"""One idempotent, level-based reconcile: look, decide (pure), act, say what is; run again at the due time."""

from octavo_operator.reconcile.reconciler import Reconciler
from octavo_operator.reconcile.settings import Settings

__all__ = ["Reconciler", "Settings"]
