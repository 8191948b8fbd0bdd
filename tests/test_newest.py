"""The weekly run: pins move to the newest releases, and a part that breaks becomes one issue."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable
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
MVN = """#!/usr/bin/env python3
import re, sys
from pathlib import Path

options = dict(word.partition("=")[::2] for word in sys.argv[1:])
pom = Path(sys.argv[sys.argv.index("-f") + 1])
text = pom.read_text()
if "dependency:resolve" in options:
    absent = re.search("<spark.minor>(4.[34])<", text)
    if absent:
        print("[WARNING] The POM for org.other:other_4.9_2.13:jar:4.0.0 is missing")
        print(f"[ERROR] Failed: org.tables:tables_{absent[1]}_2.13:jar:1.0.0 was not found in https://maven")
    sys.exit(1 if absent else 0)
new = {"delta.version": "4.9.0", "iceberg.version": "1.90.0", "spark-kafka.version": ""}
for name in options["-DincludeProperties"].split(","):
    value = new.get(name)
    if name == "spark.version":
        ignored = options["-Dmaven.version.ignore"]
        value = next(version for version in SPARKS if not re.fullmatch(ignored, version))
    if value:
        text = re.sub(f"<{name}>.*</{name}>", f"<{name}>{value}</{name}>", text)
pom.write_text(text)
print("\\x1b[0m", end="")  # Maven's own, whatever -Dstyle.color says
"""
"""Maven for releases that do not exist: of `SPARKS` it has no tables for 4.3 and 4.4."""


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The files that name a version of Spark, which a test may change."""
    for name in (newest.SPARK, *newest.SPARK_PINS):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    monkeypatch.setattr(newest, "ROOT", tmp_path)
    return tmp_path


@pytest.fixture
def sparks(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def releases(*versions: str) -> None:
        mvn = checkout / "bin/mvn"
        mvn.parent.mkdir(exist_ok=True)
        mvn.write_text(MVN.replace("SPARKS", repr(versions)))
        mvn.chmod(0o755)
        monkeypatch.setenv("PATH", f"{mvn.parent}:{os.environ['PATH']}")

    return releases


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


@pytest.mark.parametrize(
    ("releases", "chosen"),
    [
        (("4.4.0-rc1", "4.2.7"), "4.2.7"),
        (("4.4.1", "4.3.0", "4.2.7", "4.1.1"), "4.2.7"),
        (("4.4.1", "4.1.9"), "4.1.9"),
    ],
)
def test_newest_spark_is_that_with_all_jars(
    releases: tuple[str, ...],
    chosen: str,
    checkout: Path,
    sparks: Callable[..., None],
    capfd: pytest.CaptureFixture[str],
) -> None:
    sparks(*releases)
    newest.spark()
    pom = (checkout / newest.SPARK).read_text()
    names = ("spark.version", "spark.minor", "delta.version", "iceberg.version")
    assert [newest.property_of(pom, name) for name in names] == [chosen, chosen[:3], "4.9.0", "1.90.0"]
    for name, pattern in newest.SPARK_PINS.items():
        assert set(re.findall(pattern, (checkout / name).read_text(), re.MULTILINE)) == {chosen}
    left_out = [release for release in releases if re.match(r"4\.[34]\.\d+$", release)]
    assert capfd.readouterr().out.splitlines() == [
        f"Spark {release} is left out: Maven has no org.tables:tables_{release[:3]}_2.13:jar:1.0.0"
        for release in left_out
    ]


def test_incomplete_jars_of_the_pinned_spark_are_an_error(
    checkout: Path, sparks: Callable[..., None]
) -> None:
    pom = checkout / newest.SPARK
    pom.write_text(newest.with_property(pom.read_text(), "spark.minor", "4.3"))
    sparks("4.4.0", "4.3.9")
    with pytest.raises(SystemExit, match=r"the jars of the pinned Spark, 4\.3, are incomplete"):
        newest.spark()


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
