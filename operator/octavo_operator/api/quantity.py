"""Kubernetes resource quantities ("500m", "16Gi", "1e3") as exact numbers.

Grammar: https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/
"""

from __future__ import annotations

import re
from decimal import Decimal

_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50, "Ei": 2**60}
_DECIMAL = {
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    "k": Decimal(10**3),
    "M": Decimal(10**6),
    "G": Decimal(10**9),
    "T": Decimal(10**12),
    "P": Decimal(10**15),
    "E": Decimal(10**18),
}
MIB = 2**20
LARGEST = Decimal("1e21")
"""Beyond every amount that Kubernetes itself can hold (2^63 - 1 units, 16 Ei); all arithmetic below it is quick."""
MAX_CHARACTERS = 40
"""Digits are bounded as well: more of them than this say nothing that a quantity could."""
_QUANTITY = re.compile(r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+))(?:([KMGTPE]i|[numkMGTPE])|[eE]([+-]?[0-9]{1,2}))?")


def parse_quantity(value: int | str) -> Decimal:
    """The number a quantity stands for; raises ValueError naming the text, also for one beyond `LARGEST`."""
    text = str(value).strip()
    shown = repr(text if len(text) <= MAX_CHARACTERS else f"{text[:MAX_CHARACTERS]}...")
    match = _QUANTITY.fullmatch(text) if len(text) <= MAX_CHARACTERS else None
    if match is None:
        raise ValueError(f"{shown} is no resource quantity such as 500m, 4 or 16Gi")
    number, suffix, exponent = match.groups()
    if suffix is not None:
        amount = Decimal(number) * (_BINARY.get(suffix) or _DECIMAL[suffix])
    else:
        amount = Decimal(number).scaleb(int(exponent or 0))
    if abs(amount) > LARGEST:
        raise ValueError(f"{shown} is more than any machine has: use a quantity such as 500m, 4 or 16Gi")
    return amount


def mebibytes(num_bytes: int) -> str:
    """Quantity of at least `num_bytes`, in whole Mi, as the API server writes it back."""
    mib = -(-num_bytes // MIB)
    return f"{mib // 1024}Gi" if mib % 1024 == 0 else f"{mib}Mi"
