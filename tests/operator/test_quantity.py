"""Quantities: what Kubernetes writes is read exactly; what nothing could hold is refused at once."""

from __future__ import annotations

import re
from decimal import Decimal

import pytest

from octavo_operator.api.quantity import mebibytes, parse_quantity
from octavo_operator.api.spec import QUANTITY_PATTERN


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (4, "4"),
        ("0", "0"),
        ("500m", "0.5"),
        ("0.5", "0.5"),
        (".5", "0.5"),
        ("5.", "5"),
        ("+3", "3"),
        ("-1", "-1"),
        ("16Gi", str(16 * 2**30)),
        ("1.5Ki", "1536"),
        ("1E", str(10**18)),
        ("1E3", "1000"),
        ("1e3", "1000"),
        ("25e-1", "2.5"),
        ("7Ei", str(7 * 2**60)),
        ("100n", "1e-7"),
    ],
)
def test_a_quantity_is_read_exactly_and_the_crd_lets_it_in(text: int | str, value: str) -> None:
    assert parse_quantity(text) == Decimal(value)
    assert re.fullmatch(QUANTITY_PATTERN, str(text))


@pytest.mark.timeout(5)
@pytest.mark.parametrize(
    "text",
    [
        "1e999990",
        "1e999999999",
        "1e-999999999",
        "1e22",
        "2000Ei",
        "-1e22",
        "9" * 32,
        "9" * 5000,
        "Infinity",
        "NaN",
        "sNaN",
    ],
)
def test_what_no_machine_could_hold_is_refused_at_once_naming_it(text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(text[:20])):
        int(parse_quantity(text))


@pytest.mark.parametrize("text", ["", ".", "1.2.3", "4 GB", "1gi", "1e", "1e3Gi", "0x10", "1_000", "١"])
def test_what_is_no_quantity_is_refused_with_an_example_of_one(text: str) -> None:
    with pytest.raises(ValueError, match="16Gi"):
        parse_quantity(text)


@pytest.mark.parametrize("text", ["1e999990", "1e999999999", "1e-999", "1gi", "1e", "1eeee3", "1e3Gi"])
def test_the_crd_keeps_absurd_exponents_and_suffixes_out(text: str) -> None:
    assert not re.fullmatch(QUANTITY_PATTERN, text)


@pytest.mark.parametrize(("num_bytes", "text"), [(1, "1Mi"), (2**20 + 1, "2Mi"), (3 * 2**30, "3Gi")])
def test_bytes_become_whole_mebibytes_that_are_enough(num_bytes: int, text: str) -> None:
    assert mebibytes(num_bytes) == text
    assert parse_quantity(text) >= num_bytes
