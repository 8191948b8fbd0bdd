"""Kubernetes quantities ("10Gi", "250m", "1e3", 2) as exact numbers.

https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/: a decimal number and a binary suffix
(Ki … Ei), a decimal suffix (n, u, m, k … E) or an exponent.
"""

from __future__ import annotations

import re
from fractions import Fraction

# Kubernetes accepts neither more digits nor larger exponents, and such numbers would use up all memory.
_QUANTITY = re.compile(
    r"([+-]?(?:[0-9]{1,32}\.?[0-9]{0,32}|\.[0-9]{1,32}))([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]{1,2})?"
)
_SUFFIXES = {
    **{f"{letter}i": Fraction(1024**power) for power, letter in enumerate("KMGTPE", 1)},
    **{letter: Fraction(1000**power) for power, letter in enumerate("kMGTPE", 1)},
    **{letter: Fraction(1, 1000**power) for power, letter in enumerate("mun", 1)},
}


class QuantityError(ValueError):
    """Text that is not a quantity."""


def parse_quantity(text: int | str) -> Fraction:
    """The number; raises QuantityError."""
    found = _QUANTITY.fullmatch(str(text).strip())
    if found is None:
        raise QuantityError(f"{text!r} is not allowed: expected a quantity, for example 10Gi or 250m")
    number, suffix = found[1], found[2] or ""
    if suffix in _SUFFIXES:
        return Fraction(number) * _SUFFIXES[suffix]
    return Fraction(number) * (Fraction(10) ** int(suffix[1:]) if suffix else 1)


def same_quantity(one: object, other: object) -> bool:
    """Whether two values are the same quantity ("0.5" and "500m")."""
    try:
        return parse_quantity(one) == parse_quantity(other)  # type: ignore[arg-type]
    except QuantityError:
        return False
