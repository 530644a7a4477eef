"""Kubernetes resource quantities ("500m", "16Gi", "1e3") as exact numbers.

Grammar: https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/
"""

from __future__ import annotations

from decimal import Decimal, InvalidOperation

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


def parse_quantity(value: int | str) -> Decimal:
    """The number a quantity stands for; raises ValueError naming the text."""
    text = str(value).strip()
    factor = Decimal(1)
    if text[-2:] in _BINARY:
        text, factor = text[:-2], Decimal(_BINARY[text[-2:]])
    elif text[-1:] in _DECIMAL:
        text, factor = text[:-1], _DECIMAL[text[-1:]]
    try:
        return Decimal(text) * factor
    except InvalidOperation as error:
        raise ValueError(f"{value!r} is no resource quantity such as 500m, 4 or 16Gi") from error


def mebibytes(num_bytes: int) -> str:
    """Quantity of at least `num_bytes`, in whole Mi, as the API server writes it back."""
    mib = -(-num_bytes // MIB)
    return f"{mib // 1024}Gi" if mib % 1024 == 0 else f"{mib}Mi"
