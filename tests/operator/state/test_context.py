"""Reconciles declare the parts of the operator's services that they use; mypy checks that they use no others."""

from __future__ import annotations

import ast
from dataclasses import fields
from inspect import get_annotations
from pathlib import Path

import millstream_operator
from millstream_operator.state.context import Services

PACKAGE = Path(millstream_operator.__file__).parent
MOST_FIELDS = 4


def test_reconciles_do_not_take_all_services() -> None:
    wide = [
        f"{file.relative_to(PACKAGE)}:{node.lineno}"
        for folder in ("reconcile", "state", "certificates")
        for file in sorted((PACKAGE / folder).rglob("*.py"))
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.arg) and node.annotation is not None
        if "Services" in ast.unparse(node.annotation)
    ]
    assert wide == []


def test_parts_of_services_are_small() -> None:
    inherited = [part for part in Services.__mro__ if "__dataclass_fields__" in vars(part)]
    own = {part.__name__: set(get_annotations(part)) for part in inherited}
    assert set().union(*own.values()) == {field.name for field in fields(Services)}
    assert {name for name, its_own in own.items() if len(its_own) > MOST_FIELDS} == set()
