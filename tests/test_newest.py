"""The weekly run: pins move to the newest releases, and a part that breaks becomes one issue."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from millstream_harness import newest

pytestmark = pytest.mark.process
ROOT = Path(__file__).resolve().parents[1]
PYPROJECT = """dependencies = [
    "msgspec==0.19.0",
    "PyYAML==6.0.2",
    "uvicorn[standard]==0.30.0",
    "click>=8",
    "rich>=13,<15",
]
spark = ["pyspark==4.1.1"]
"""
GH = """#!/bin/sh
echo "$*" >> "$CALLS"
case "$1 $2" in
"api --paginate") printf 'newest kafka\\thttps://ci/1\\nnewest spark\\thttps://ci/2\\n' ;;
"issue list") case "$*" in *spark*) echo 7 ;; esac ;;
esac
"""


@pytest.mark.parametrize(
    ("version", "counts"),
    [
        ("4.3.1", True),
        ("4.2.0", True),
        ("3.4.2", True),
        ("4.2.0-rc1", False),
        ("4.4.0-RC2", False),
        ("4.2.0-preview2", False),
        ("4.0.0.0-alpha-1", False),
        ("1.0.0-beta", False),
        ("2.0-M1", False),
        ("4.2.0-SNAPSHOT", False),
    ],
)
def test_only_releases_count(version: str, counts: bool) -> None:
    assert (re.fullmatch(newest.NO_RELEASE, version) is None) is counts


def test_property_of_a_pom() -> None:
    pom = (ROOT / newest.SPARK).read_text()
    changed = newest.with_property(pom, "spark.version", "9.8.7")
    assert newest.property_of(changed, "spark.version") == "9.8.7"
    assert changed.replace("9.8.7", newest.property_of(pom, "spark.version")) == pom
    with pytest.raises(AssertionError):
        newest.with_property(pom, "no.such", "1")


@pytest.mark.parametrize("path", newest.SPARK_PINS)
def test_version_of_spark_in_each_file(path: str) -> None:
    text, pattern = (ROOT / path).read_text(), newest.SPARK_PINS[path]
    changed = newest.with_version(text, pattern, "9.8.7")
    assert set(re.findall(pattern, changed, re.MULTILINE)) == {"9.8.7"}
    before = newest.property_of((ROOT / newest.SPARK).read_text(), "spark.version")
    assert newest.with_version(changed, pattern, before) == text


def test_python_packages_are_pinned_as_the_new_lock_has_them() -> None:
    loose = newest.loosened(PYPROJECT, [])
    assert '"msgspec>=0.19.0"' in loose
    assert '"uvicorn[standard]>=0.30.0"' in loose
    assert '"pyspark==4.1.1"' in loose
    lock = "msgspec==0.21.1\npyyaml==6.0.3\nclick==9\nuvicorn==0.40.0\npyspark==4.1.1\n"
    assert newest.pinned_as(PYPROJECT, lock) == (
        PYPROJECT.replace("0.19.0", "0.21.1").replace("6.0.2", "6.0.3").replace("0.30.0", "0.40.0")
    )
    only = newest.loosened(PYPROJECT, ["pyyaml"])
    assert only == PYPROJECT.replace("PyYAML==", "PyYAML>=")


def test_broken_part_gets_one_issue(tmp_path: Path) -> None:
    """A part without an open issue gets one, a part with one a comment."""
    workflow = yaml.safe_load((ROOT / ".github/workflows/weekly.yml").read_text())
    (step,) = workflow["jobs"]["report"]["steps"]
    gh, calls = tmp_path / "gh", tmp_path / "calls"
    gh.write_text(GH)
    gh.chmod(0o755)
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "CALLS": str(calls), "GH_REPO": "o/r", "RUN": "1"}
    subprocess.run(["bash", "-eo", "pipefail", "-c", step["run"]], env=env, check=True, timeout=60)
    made = [line for line in calls.read_text().splitlines() if re.match("issue (create|comment)", line)]
    assert len(made) == 2
    assert made[0].startswith("issue create --title Weekly: newest kafka breaks --body ")
    assert made[0].endswith("https://ci/1")
    assert made[1].startswith("issue comment 7 --body ")
    assert made[1].endswith("https://ci/2")


def test_unknown_part_shows_the_parts() -> None:
    done = subprocess.run(
        [ROOT / ".ci/newest", "flink"], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 2
    assert ".ci/newest kafka|spark|python|kubernetes" in done.stderr
