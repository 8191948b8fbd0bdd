"""Rules for the repository as a whole: one version, working links, and which tests run when."""

from __future__ import annotations

import ast
import importlib
import re
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import mutate
import past_defects
from millstream_harness.chart import VERSION
from millstream_harness.tiers import SOAK, UNIT, files_in, tiers_in

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = {
    "broker-image": "millstream_broker",
    "client": "millstream",
    "kafka-protocol": "millstream_kafka",
    "operator": "millstream_operator",
    "spark-operator-jobs": "millstream_jobs",
}
DOCUMENTS = sorted(
    path
    for pattern in ("*.md", "docs/**/*.md", "examples/**/*.md", "findings/*.md")
    for path in ROOT.glob(pattern)
)
LINK = re.compile(r"\]\((?!https?:)([^)#]+)")


def test_everything_carries_one_version() -> None:
    versions = {}
    for folder, module in PACKAGES.items():
        project = tomllib.loads((ROOT / folder / "pyproject.toml").read_text())["project"]
        versions[folder] = project["version"]
        versions[module] = importlib.import_module(module).__version__
    chart = yaml.safe_load((ROOT / "charts/millstream/Chart.yaml").read_text())
    versions |= {"chart": chart["version"], "appVersion": chart["appVersion"]}
    for path in (ROOT / "crds").glob("*.yaml"):
        versions[path.name] = yaml.safe_load(path.read_text())["metadata"]["annotations"][
            "millstream.dev/version"
        ]
    assert len(set(versions.values())) == 1, versions


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_to_files(document: Path) -> None:
    for link in LINK.findall(document.read_text()):
        assert (document.parent / link).exists(), f"{document.name}: {link}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_label_of_a_link_to_code_is_its_path_or_a_name_in_it(document: Path) -> None:
    """`reconcile/topic/plan`, `Replica.last_stable_offset`: so pages notice when code moves or is renamed."""
    for label, target in re.findall(r"\[`([\w./]+)`\]\((?!https?:)([^)#]+\.py)\)", document.read_text()):
        path = target.removesuffix(".py").removesuffix("/__init__")
        if not path.endswith(label.removesuffix(".py").rstrip("/")):
            assert "/" not in label, f"{document.name}: {label} is not {target}"
            code = (document.parent / target).read_text()
            assert re.search(rf"\b{label.split('.')[-1]}\b", code), (
                f"{document.name}: {label} is not in {target}"
            )


def test_every_part_has_tests_that_make_test_runs() -> None:
    parts = {path.parent for path in (ROOT / "tests").rglob("test_*.py")}
    run = {(ROOT / file).parent for file, tiers in files_in(ROOT).items() if tiers != {SOAK}}
    assert parts - run == {ROOT / "tests/broker/robustness", ROOT / "tests/compat/beside"}


def test_continuous_integration_leaves_no_test_out() -> None:
    """`make test` has all tiers but soak, and of those CI runs one fifth with each commit."""
    commands = dict(
        re.findall(r"^(test|test-all): .*\n\t(.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    )
    assert commands["test"].replace(" --tiers=unit,process", "") == commands["test-all"]
    run = (ROOT / ".ci" / "run").read_text()
    assert "SOAK=${SOAK:-$(($(git rev-list --count HEAD) % 5 + 1))/5}" in run
    assert re.findall(r"^ *make test.*", run, re.MULTILINE) == [
        '  make test-all SOAK="$SOAK" PYTEST=--durations=25'
    ]


def test_mutation_runs_no_soak_test() -> None:
    """What notices a change of the code is in tiers that every commit runs."""
    for area in mutate.AREAS.values():
        for path in area.paths():
            assert SOAK not in tiers_in((ROOT / path).read_text()), path


@pytest.mark.parametrize("folder", ["groups", "controller", "replication", "log", "security"])
def test_mutation_runs_every_unit_test_of_these_parts(folder: str) -> None:
    """A new file of tests counts at once."""
    run = {path for one in mutate.AREAS.values() for path in one.paths()}
    files = (ROOT / "tests/broker" / folder).rglob("test_*.py")
    left_out = {str(file.relative_to(ROOT)) for file in files if UNIT in tiers_in(file.read_text())} - run
    assert not left_out


def functions_in(file: Path) -> dict[str, ast.AST]:
    """Functions and methods by name, as `mutate.py` names them."""
    found: dict[str, ast.AST] = {}
    for node in ast.parse(file.read_text()).body:
        for child in node.body if isinstance(node, ast.ClassDef) else [node]:
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                name = f"{node.name}.{child.name}" if isinstance(node, ast.ClassDef) else child.name
                found[name] = child
    return found


@pytest.mark.parametrize("area", mutate.AREAS)
def test_equivalent_mutants_change_a_line_of_today(area: str) -> None:
    """An entry whose line has changed would hide nothing, and mislead whoever reads it."""
    sources = [ROOT / package / "src" for package in mutate.SOURCES]
    for module, function, old, new in mutate.equivalents(area):
        (file,) = [source / module for source in sources if (source / module).exists()]
        body = functions_in(file).get(function)
        assert body is not None, f"{module} has no {function}"
        assert old in ast.unparse(body) or old in ast.get_source_segment(file.read_text(), body), (
            f"{module}: {function} has no line {old!r}"
        )
        assert old != new


def pins(file: Path) -> dict[str, str]:
    """Version by package; spelling of names as pip compares them."""
    found = re.findall(r"^([\w.-]+)==([^\s\\]+)", file.read_text(), re.MULTILINE)
    return {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in found}


@pytest.mark.parametrize("folder", ["broker-image", "client", "operator"])
def test_images_install_what_is_pinned(folder: str) -> None:
    tested = pins(ROOT / "requirements-dev.txt")
    wanted = tomllib.loads((ROOT / folder / "pyproject.toml").read_text())
    installed = pins(ROOT / folder / "requirements.txt")
    builds = pins(ROOT / folder / "requirements-build.txt")
    assert (installed | builds).items() <= tested.items(), "make lock"
    extras = wanted["project"].get("optional-dependencies", {})
    runs_on = wanted["project"]["dependencies"] + extras.get("command", [])
    if f"millstream-kafka=={VERSION}" in runs_on:  # its wheel is built in the image
        runs_on += tomllib.loads((ROOT / "kafka-protocol/pyproject.toml").read_text())["project"][
            "dependencies"
        ]
        assert "/src/kafka-protocol" in (ROOT / folder / "Dockerfile").read_text()
    for needed, there in (
        (runs_on, installed),
        (extras.get("uvloop", []), installed),
        (wanted["build-system"]["requires"], builds),
    ):
        for requirement in map(Requirement, needed):
            found = (
                VERSION
                if requirement.name == "millstream-kafka"
                else there[canonicalize_name(requirement.name)]
            )
            assert found in requirement.specifier, f"make lock: {requirement}"
    for file in ("requirements.txt", "requirements-build.txt"):
        text = (ROOT / folder / file).read_text()
        assert len(re.findall(r"^\S+==\S+ \\\n    --hash=sha256:", text, re.MULTILINE)) == len(
            pins(ROOT / folder / file)
        )
    assert "--require-hashes" in (ROOT / folder / "Dockerfile").read_text()


def test_library_leaves_versions_to_its_users() -> None:
    """Ranges, of which tests take a version in the middle; what only the command needs is in an extra."""
    project = tomllib.loads((ROOT / "client/pyproject.toml").read_text())["project"]
    protocol = tomllib.loads((ROOT / "kafka-protocol/pyproject.toml").read_text())["project"]
    tested = pins(ROOT / "requirements-dev.txt")
    needed = [Requirement(one) for one in project["dependencies"]]
    assert {one.name for one in needed} == {"confluent-kafka", "msgspec"}
    extras = [Requirement(one) for extra in project["optional-dependencies"].values() for one in extra]
    (ours,) = [one for one in extras if one.name == "millstream-kafka"]
    extras.remove(ours)
    assert str(ours.specifier) == f"=={VERSION}"
    for one in needed + extras + list(map(Requirement, protocol["dependencies"])):
        assert sorted(part.operator for part in one.specifier) == ["<", ">="], one
        assert tested[canonicalize_name(one.name)] in one.specifier, f"make lock: {one}"


def test_the_s3_server_of_tests_is_locked_with_hashes() -> None:
    lines = (ROOT / "tests/jobs/moto-requirements.txt").read_text().replace("\\\n", " ").splitlines()
    pinned = [line for line in lines if line and not line.startswith("#")]
    assert pinned
    assert all("==" in line and "--hash=sha256:" in line for line in pinned)


def test_no_two_classes_of_the_image_share_a_name() -> None:
    """Classes of the protocol have the names of Kafka's messages, those of `admin` those of Kafka's admin client."""
    places: dict[str, list[str]] = {}
    for path in sorted(
        path
        for folder in ("broker-image", "kafka-protocol")
        for path in (ROOT / folder / "src").rglob("*.py")
    ):
        if path.parent.name not in ("protocol", "admin"):
            for name in re.findall(r"^class (\w+)", path.read_text(), re.MULTILINE):
                places.setdefault(name, []).append(str(path.relative_to(ROOT)))
    assert len(places) > 100
    assert {name: where for name, where in places.items() if len(where) > 1} == {}


def test_each_limit_is_where_the_document_says() -> None:
    """docs/limits.md names constants with their modules, of the broker unless a package is named."""
    sources = {path.name: path for path in ROOT.glob("*/src/millstream*")}
    named = re.findall(
        r"`([A-Z][A-Z0-9_]{3,})`(?:, `[A-Z0-9_]+`)* \(`([a-z_.]+)`\)", (ROOT / "docs/limits.md").read_text()
    )
    assert len(named) > 20
    for constant, module in named:
        parts = module.split(".")
        if parts[0] not in sources:
            parts.insert(0, "millstream_broker")
        path = sources[parts[0]].joinpath(*parts[1:])
        file = path.with_suffix(".py") if path.with_suffix(".py").exists() else path / "__init__.py"
        assert re.search(rf"^ *(?:\w+, )*{constant}\b.*=", file.read_text(), re.MULTILINE), (
            f"{constant} ({module})"
        )


def test_each_decision_is_in_the_index_with_its_status() -> None:
    """A decision that another one replaces stays, and its status names the other."""
    folder = ROOT / "docs/decisions"
    rows = re.findall(
        r"^\| \[(\d+)\]\((\S+\.md)\) \| .+ \| (.+) \|$", (folder / "README.md").read_text(), re.MULTILINE
    )
    pages = sorted(path.name for path in folder.glob("[0-9]*.md"))
    assert [page for _, page, _ in rows] == pages, "docs/decisions/README.md"
    for number, page, status in rows:
        assert page.startswith(f"{int(number):04}-")
        assert (folder / page).read_text().startswith(f"# {number}. ")
        assert re.match(r"(proposed|accepted|withdrawn)\b|replaced by \[\d+\]", status), f"{page}: {status}"


def test_each_finding_is_listed_and_names_what_it_needs() -> None:
    folder = ROOT / "findings"
    scripts = sorted(path.name for path in folder.glob("*.sh"))
    listed = re.findall(r"^\| \[`(\S+\.sh)`\]\(\1\) \|", (folder / "README.md").read_text(), re.MULTILINE)
    assert listed == scripts, "findings/README.md"
    for name in scripts:
        head = (folder / name).read_text().partition("\nset -e")[0]
        for part in ("\n# Seen: ", "\n# Needs ", "Fails if this changes."):
            assert part in head, f"{name}: {part.strip()}"


@pytest.mark.parametrize("area", sorted(path.stem for path in past_defects.DEFECTS.glob("*.toml")))
def test_defects_of_the_past_can_be_put_back(area: str) -> None:
    """An entry whose text or test has changed would show nothing."""
    for defect in past_defects.defects():
        if defect.area != area:
            continue
        ast.parse(defect.put_back((ROOT / defect.file).read_text()))
        assert defect.with_defect != defect.text, defect.what
        assert defect.tests, defect.what
        for test in defect.tests:
            path, _, name = test.partition("::")
            found = re.search(rf"\b{name}\b", (ROOT / path).read_text())
            assert found is not None, f"{area}.toml, {defect.what!r}: {test} is gone"
            assert SOAK not in tiers_in((ROOT / path).read_text()), test
