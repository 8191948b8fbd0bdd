"""Wheels and chart: `make wheels` and `make chart` build them with everything they need at run time."""

from __future__ import annotations

import re
import tarfile
import zipfile
from pathlib import Path

import pytest
import yaml

from millstream_harness.chart import VERSION
from millstream_harness.java import run
from millstream_harness.tools import require

pytestmark = pytest.mark.process

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = {
    "broker-image": ("millstream_broker", "millstream_mirror", "millstream_process"),
    "client": ("millstream",),
    "kafka-protocol": ("millstream_kafka",),
    "operator": ("millstream_operator",),
    "spark-operator-jobs": ("millstream_jobs",),
}
AS_INSTALLED = ("--old-file=setup", "--old-file=.venv/.installed")
"""Keep the tests' own .venv as it is."""


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, zipfile.ZipFile]:
    """Wheel by the name of its first package."""
    folder = tmp_path_factory.mktemp("wheels")
    run(["make", *AS_INSTALLED, "wheels", f"DIST={folder}"], cwd=ROOT, timeout=280)
    found = [zipfile.ZipFile(path) for path in folder.iterdir()]
    return {Path(one.filename or "").name.partition("-")[0]: one for one in found}


@pytest.mark.parametrize("folder", PACKAGES)
def test_a_wheel_has_every_file_of_its_packages(wheels: dict[str, zipfile.ZipFile], folder: str) -> None:
    source = ROOT / folder / "src"
    files = {
        str(path.relative_to(source))
        for package in PACKAGES[folder]
        for path in (source / package).rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    wheel = wheels[PACKAGES[folder][0]]
    names = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert names == files
    assert {f"{package}/py.typed" for package in PACKAGES[folder]} <= names
    assert f"-{VERSION}-py3-none-any.whl" in str(wheel.filename)


def test_every_package_is_in_a_wheel(wheels: dict[str, zipfile.ZipFile]) -> None:
    makefile = (ROOT / "Makefile").read_text()
    (folders,) = re.findall(r"^PACKAGES := (.*)$", makefile, re.MULTILINE)
    assert folders.split() == list(PACKAGES)
    for folder, packages in PACKAGES.items():
        there = {path.parent.name for path in (ROOT / folder / "src").glob("*/__init__.py")}
        assert there == set(packages)
    assert len(wheels) == len(PACKAGES)


def test_pages_install_a_wheel_with_the_wheels_that_it_needs(wheels: dict[str, zipfile.ZipFile]) -> None:
    """No package index has them."""
    checked = 0
    for page in (ROOT / "docs").rglob("*.md"):
        for command in re.findall(r"^pip install .*$", page.read_text(), re.MULTILINE):
            installed = set(re.findall(r"dist/(\w+)-", command))
            for name in installed:
                (metadata,) = [
                    path for path in wheels[name].namelist() if path.endswith(".dist-info/METADATA")
                ]
                required = re.findall(
                    r"^Requires-Dist: (millstream[\w-]*)[^;]*$",
                    wheels[name].read(metadata).decode(),
                    re.MULTILINE,
                )
                assert {package.replace("-", "_") for package in required} <= installed, page
                checked += 1
    assert checked


def test_the_operators_wheel_has_the_definitions(wheels: dict[str, zipfile.ZipFile]) -> None:
    names = wheels["millstream_operator"].namelist()
    for path in (ROOT / "crds").glob("*.yaml"):
        assert f"millstream_operator/crds/{path.name}" in names


def test_the_packaged_chart_is_whole(tmp_path: Path) -> None:
    require("helm")
    run(["make", "chart", f"DIST={tmp_path}"], cwd=ROOT)
    with tarfile.open(tmp_path / f"millstream-{VERSION}.tgz") as package:
        names = set(package.getnames())
        member = package.extractfile("millstream/Chart.yaml")
        assert member is not None
        assert yaml.safe_load(member.read())["version"] == VERSION
    chart = ROOT / "charts/millstream"
    files = {f"millstream/{path.relative_to(chart)}" for path in chart.rglob("*") if path.is_file()}
    assert files - names <= {"millstream/.helmignore"}
    assert {f"millstream/crds/{path.name}" for path in (ROOT / "crds").glob("*.yaml")} <= names
