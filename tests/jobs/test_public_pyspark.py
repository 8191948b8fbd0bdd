"""Jobs use only PySpark's documented API: no names with a leading underscore, and no calls into its JVM."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import millstream_jobs

EXCEPTIONS = {
    "iceberg.py": ["self._spark._jvm", "self._spark._jsparkSession"],
    "progress.py": ["spark.sparkContext._jsc"],
}
"""By module. No SQL tells a table's id and the number of its last commit; Iceberg's own helper does, in the JVM.
PySpark's status tracker has tasks but no rows; the JVM's status store has both."""
SOURCES = sorted(Path(millstream_jobs.__file__).parent.rglob("*.py"))


def private(source: str) -> list[str]:
    """Private attributes except those of self, cls and KafkaError; private names of pyspark; py4j except its errors."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
            if not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls", "KafkaError")):
                found.append(ast.unparse(node))
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [*node.module.split("."), *(alias.name for alias in node.names)]
            if names[0] == "pyspark" and any(name.startswith("_") for name in names):
                found.append(ast.unparse(node))
            if names[0] == "py4j" and any(not name.endswith("Error") for name in names[2:]):
                found.append(ast.unparse(node))
    return found


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_a_module_uses_public_names_only(path: Path) -> None:
    assert private(path.read_text()) == EXCEPTIONS.get(path.name, [])


def test_what_is_private_is_found() -> None:
    source = (
        "from pyspark.sql.types import _parse_datatype_string\n"
        "from py4j.java_gateway import JavaGateway\n"
        "spark._jvm.x()\n"
        "self._spark.table('t')\n"
        "KafkaError._PARTITION_EOF\n"
    )
    assert private(source) == [
        "from pyspark.sql.types import _parse_datatype_string",
        "from py4j.java_gateway import JavaGateway",
        "spark._jvm",
    ]
