"""Kubernetes' quantities, such as 10Gi."""

from __future__ import annotations

import pytest

from millstream_operator.models.quantity import QuantityError, parse_quantity, same_quantity


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("10Gi", 10 * 2**30),
        ("1k", 1000),
        (3, 3),
        ("250m", 0.25),
        ("1e3", 1000),
        ("1.5", 1.5),
        (".5", 0.5),
        ("2E", 2 * 10**18),
    ],
)
def test_quantities(text: str | int, value: float) -> None:
    assert parse_quantity(text) == value


@pytest.mark.parametrize("text", ["", "Gi", "1GiB", "ten", "1 2", "1e789012345", "9" * 5000, "." + "1" * 40])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(QuantityError):
        parse_quantity(text)
    assert not same_quantity(text, 1)
