"""`spark-operator-jobs/pom.xml` pins Spark and its jars; every other file that names a version names the same."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from millstream_harness.newest import SPARK_PINS

ROOT = Path(__file__).resolve().parents[1]
POM = ROOT / "spark-operator-jobs/pom.xml"
MAVEN = "{http://maven.apache.org/POM/4.0.0}"


def properties(pom: Path) -> dict[str, str]:
    (found,) = ElementTree.parse(pom).iterfind(f"{MAVEN}properties")
    return {entry.tag.removeprefix(MAVEN): entry.text or "" for entry in found}


@pytest.mark.parametrize("path", SPARK_PINS)
def test_files_name_the_pinned_spark(path: str) -> None:
    versions = set(re.findall(SPARK_PINS[path], (ROOT / path).read_text(), re.MULTILINE))
    assert versions == {properties(POM)["spark.version"]}


def test_jars_are_for_the_pinned_spark() -> None:
    pinned = properties(POM)
    for name in ("spark.version", "spark-kafka.version"):
        assert pinned[name].startswith(f"{pinned['spark.minor']}.")
    for artifact in ("delta-spark_", "iceberg-spark-runtime-"):
        assert POM.read_text().count(artifact) == POM.read_text().count(f"{artifact}${{spark.minor}}_") == 1


def test_image_of_the_test_cluster_has_the_pinned_spark() -> None:
    """`.ci/run` makes Spark's image on the cluster with the version in the pom."""
    (line,) = re.findall(
        r'^ *"\$cluster/image" spark "\$\((.*)\)"$', (ROOT / ".ci/run").read_text(), re.MULTILINE
    )
    assert line == "sed -n 's|.*<spark.version>\\(.*\\)</spark.version>.*|\\1|p' spark-operator-jobs/pom.xml"
