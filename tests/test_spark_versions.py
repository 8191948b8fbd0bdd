"""`spark-operator-jobs/pom.xml` pins Spark and its jars; every other file that names a version names the same."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from millstream_operator.resources.load import SPARK_VERSION

ROOT = Path(__file__).resolve().parents[1]
POM = ROOT / "spark-operator-jobs/pom.xml"
MAVEN = "{http://maven.apache.org/POM/4.0.0}"
PINS = {
    "spark-operator-jobs/Dockerfile": r"^FROM spark:([\d.]+)-python3$",
    "spark-operator-jobs/pyproject.toml": r'"pyspark==([^"]+)"',
    "spark-operator-jobs/manifests/spark-application.yaml": r"sparkVersion: (\S+)",
    "spark-operator-jobs/manifests/scheduled-spark-application.yaml": r"sparkVersion: (\S+)",
    "requirements-dev.txt": r"^pyspark==(\S+)",
    "docs/how-to/ci.md": r"pyspark ([\d.]+\d)",
    "docs/how-to/connect.md": r"spark-sql-kafka-0-10_[\d.]+:([\d.]+\d)",
}
"""Pattern of the version by file."""


def properties(pom: Path) -> dict[str, str]:
    (found,) = ElementTree.parse(pom).iterfind(f"{MAVEN}properties")
    return {entry.tag.removeprefix(MAVEN): entry.text or "" for entry in found}


@pytest.mark.parametrize("path", PINS)
def test_files_name_the_pinned_spark(path: str) -> None:
    versions = set(re.findall(PINS[path], (ROOT / path).read_text(), re.MULTILINE))
    assert versions == {properties(POM)["spark.version"]}


def test_operator_asks_for_the_pinned_spark() -> None:
    assert properties(POM)["spark.version"] == SPARK_VERSION


def test_iceberg_runtime_is_for_the_pinned_spark() -> None:
    (minor,) = set(re.findall(r"iceberg-spark-runtime-([\d.]+)_", POM.read_text()))
    assert properties(POM)["spark.version"].startswith(f"{minor}.")


def test_catalog_of_tests_has_the_tables_iceberg() -> None:
    catalog = properties(ROOT / "tests/jobs/iceberg-rest/pom.xml")
    assert catalog["iceberg.version"] == properties(POM)["iceberg.version"]
