"""Moves the checkout to the newest releases of what it pins, for the weekly run of `.ci/newest`; nothing is committed.

    PYTHONPATH=tests/harness .venv/bin/python -P -m millstream_harness.newest kafka|spark|python [PACKAGE…]

Maven and pip-compile choose the newest release; what is no release, such as 4.2.0-rc1, does not count. Prints each pin
that changes.

kafka    Apache Kafka, in `bench/kafka/pom.xml`; a release may lack MirrorMaker 2
spark    Spark, and the jars of `spark-operator-jobs/pom.xml` for its minor version: its Kafka source, Delta, Iceberg. A
         minor version for which one of them has no jars yet is left out
python   the packages of `requirements-dev.txt` and of the images; with names, only these. PySpark stays that of the pom
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
KAFKA = Path("bench/kafka/pom.xml")
SPARK = Path("spark-operator-jobs/pom.xml")
PYPROJECTS = [
    Path(folder, "pyproject.toml") for folder in ("broker-image", "client", "kafka-protocol", "operator")
]
JOBS = Path("spark-operator-jobs/pyproject.toml")
SPARK_PINS = {
    "spark-operator-jobs/Dockerfile": r"^FROM spark:([\d.]+)-python3$",
    "spark-operator-jobs/pyproject.toml": r'"pyspark==([^"]+)"',
    "spark-operator-jobs/manifests/spark-application.yaml": r"sparkVersion: (\S+)",
    "spark-operator-jobs/manifests/scheduled-spark-application.yaml": r"sparkVersion: (\S+)",
    "operator/src/millstream_operator/resources/load.py": r'^SPARK_VERSION = "([^"]+)"$',
    "requirements-dev.txt": r"^pyspark==(\S+)",
    "docs/how-to/ci.md": r"pyspark ([\d.]+\d)",
    "docs/how-to/connect.md": r"spark-sql-kafka-0-10_[\d.]+:([\d.]+\d)",
}
"""Files that repeat the pom's version of Spark, and the pattern of the version there."""
NO_RELEASE = r".*[-.](?i:alpha|beta|m|rc|preview|snapshot)[-.]?\d*.*"
MAVEN = ("mvn", "-B", "-Dstyle.color=never")
PLUGIN = "org.codehaus.mojo:versions-maven-plugin:2.18.0:update-properties"
NOT_FOUND = re.compile(r"^\[ERROR\].*?([\w.-]+:[\w.-]+:jar:[\w.-]+)", re.MULTILINE)
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
PINNED = re.compile(r'"([A-Za-z0-9._-]+)(\[[^\]]*\])?==([^";\s]+)')


def named(package: str) -> str:
    """A package's name as pip compares them."""
    return re.sub(r"[-_.]+", "-", package).lower()


def property_of(pom: str, name: str) -> str:
    (value,) = re.findall(rf"<{re.escape(name)}>(.*)</{re.escape(name)}>", pom)
    return str(value)


def with_property(pom: str, name: str, value: str) -> str:
    tag = re.escape(name)
    changed, count = re.subn(rf"(<{tag}>).*(</{tag}>)", rf"\g<1>{value}\g<2>", pom)
    assert count == 1, name
    return changed


def loosened(pyproject: str, packages: Sequence[str]) -> str:
    """Without upper limits for these packages, or for all, except PySpark."""
    wanted = set(map(named, packages))

    def loose(pin: re.Match[str]) -> str:
        name = named(pin[1])
        if name == "pyspark" or (wanted and name not in wanted):
            return pin[0]
        return f'"{pin[1]}{pin[2] or ""}>={pin[3]}'

    return PINNED.sub(loose, pyproject)


def pinned_as(pyproject: str, lock: str) -> str:
    """With the lock's versions where a version is pinned."""
    versions = {
        named(name): version for name, version in re.findall(r"^([\w.-]+)==(\S+)", lock, re.MULTILINE)
    }
    return PINNED.sub(
        lambda pin: f'"{pin[1]}{pin[2] or ""}=={versions.get(named(pin[1]), pin[3])}', pyproject
    )


def run(*command: str) -> None:
    subprocess.run(command, cwd=ROOT, check=True)


def quietly(*command: str) -> None:
    """Show the output of a command only if it fails: Maven puts codes of colours into a pipe, too."""
    done = subprocess.run(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(COLOUR.sub("", done.stdout) + f"newest: {command[0]} failed")


def update(pom: Path, properties: Sequence[str], *options: str, ignored: str = NO_RELEASE) -> None:
    """Maven sets these properties of a pom to the newest release that all artifacts with this version have."""
    ours = [f"-DincludeProperties={','.join(properties)}", "-DgenerateBackupPoms=false"]
    quietly(*MAVEN, "-q", "-f", str(pom), PLUGIN, *ours, f"-Dmaven.version.ignore={ignored}", *options)


def missing(pom: Path) -> list[str]:
    """The artifacts of a pom that Maven does not find."""
    command = [*MAVEN, "-f", str(pom), "dependency:resolve"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return []
    found = sorted(set(NOT_FOUND.findall(done.stdout)))
    assert found, done.stdout + done.stderr
    return found


def kafka() -> None:
    update(KAFKA, ["kafka.version"], "-Dwithout.mirrormaker")


def spark() -> None:
    """The newest Spark for whose minor version there are all jars."""
    pom = ROOT / SPARK
    before, ignored = pom.read_text(), NO_RELEASE
    while True:
        update(SPARK, ["spark.version"], ignored=ignored)
        new = property_of(pom.read_text(), "spark.version")
        minor = new.rpartition(".")[0]
        for name, value in (("spark.minor", minor), ("spark-kafka.version", new)):
            pom.write_text(with_property(pom.read_text(), name, value))
        update(SPARK, ["spark-kafka.version"], "-DallowMinorUpdates=false")
        update(SPARK, ["delta.version", "iceberg.version"])
        absent = missing(SPARK)
        if not absent:
            break
        print(f"Spark {new} is left out: Maven has no {', '.join(absent)}", flush=True)
        if minor == property_of(before, "spark.minor"):
            raise SystemExit(f"newest: the jars of the pinned Spark, {minor}, are incomplete")
        pom.write_text(before)
        ignored += rf"|{re.escape(minor)}\..*"
    for name, pattern in SPARK_PINS.items():
        path = ROOT / name
        path.write_text(with_version(path.read_text(), pattern, new))


def with_version(text: str, pattern: str, version: str) -> str:
    """The text with this version wherever the pattern's group finds one."""

    def replaced(found: re.Match[str]) -> str:
        begin, end = found.start(1) - found.start(), found.end(1) - found.start()
        return found[0][:begin] + version + found[0][end:]

    return re.sub(pattern, replaced, text, flags=re.MULTILINE)


def python(packages: Sequence[str]) -> None:
    before = {path: (ROOT / path).read_text() for path in (*PYPROJECTS, JOBS)}
    for path, text in before.items():
        (ROOT / path).write_text(loosened(text, packages))
    upgrade = " ".join(f"--upgrade-package={name}" for name in packages) or "--upgrade"
    run("make", "lock", f"UPGRADE={upgrade}")
    lock = (ROOT / "requirements-dev.txt").read_text()
    for path, text in before.items():
        (ROOT / path).write_text(pinned_as(text, lock))


def main(arguments: list[str]) -> int:
    match arguments:
        case ["kafka"]:
            kafka()
        case ["spark"]:
            spark()
        case ["python", *packages]:
            python(packages)
        case _:
            print(__doc__, file=sys.stderr)
            return 2
    run("git", "--no-pager", "diff", "--unified=0")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
