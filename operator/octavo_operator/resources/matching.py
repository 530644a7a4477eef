"""Whether a live object already is what we would apply: then nothing is written.

Two questions, because either alone misses something. The hash in the `applied` annotation tells whether *we* want
something else than last time (a field that we dropped included). Comparing field by field tells whether *someone
else* changed what we own. What others added beside our fields is theirs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from octavo_operator.api import labels
from octavo_operator.api.quantity import parse_quantity
from octavo_operator.resources.ownership import Manifest

MERGE_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "volumes": "name",
    "env": "name",
    "ports": "name",
    "volumeMounts": "mountPath",
    "imagePullSecrets": "name",
    "ownerReferences": "uid",
    "topologySpreadConstraints": "topologyKey",
}
"""Lists that the API server merges by key; all others are compared entry by entry."""
QUANTITY_MAPS = frozenset({"requests", "limits"})
QUANTITY_FIELDS = frozenset({"sizeLimit"})


def is_applied(desired: Manifest, live: Mapping[str, Any]) -> bool:
    """Whether applying `desired` would change nothing."""
    annotations = live.get("metadata", {}).get("annotations") or {}
    wanted = desired["metadata"].get("annotations", {}).get(labels.APPLIED)
    # Items of a LIST come without apiVersion and kind.
    content = {key: value for key, value in desired.items() if key not in {"apiVersion", "kind"}}
    return annotations.get(labels.APPLIED) == wanted and contains(live, content)


def contains(live: Any, desired: Any, field: str = "") -> bool:
    """Whether every value of `desired` is in `live`. `field` is the name of the field that holds them."""
    # Concrete types: both sides come from JSON, and this runs for every field of every child at every reconcile.
    if isinstance(desired, dict):
        if not isinstance(live, dict):
            return not desired and live is None
        if field in QUANTITY_MAPS:
            return all(key in live and _same_quantity(live[key], value) for key, value in desired.items())
        return all(contains(live.get(key), value, key) for key, value in desired.items())
    if isinstance(desired, (list, tuple)):
        return _contains_list(live if isinstance(live, list) else [], desired, field)
    if field in QUANTITY_FIELDS:
        return _same_quantity(live, desired)
    # The API server leaves out empty strings and false.
    return bool(live == desired) or (live is None and desired in ("", False))


def _contains_list(live: Sequence[Any], desired: Sequence[Any], field: str) -> bool:
    key = MERGE_KEYS.get(field)
    if key is None:
        return len(live) == len(desired) and all(map(contains, live, desired))
    by_key = {item.get(key): item for item in live if isinstance(item, dict)}
    return all(item[key] in by_key and contains(by_key[item[key]], item) for item in desired)


def _same_quantity(live: Any, desired: Any) -> bool:
    try:
        return parse_quantity(live) == parse_quantity(desired)
    except ValueError:
        return bool(live == desired)
