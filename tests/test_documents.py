"""Claims of documents and configuration files, each checked against the code that it describes."""

from __future__ import annotations

import importlib
import inspect
import json
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from millstream_broker.config.config_keys import BROKER_KEYS
from millstream_broker.config.config_types import Type, as_text
from millstream_harness import authorization_document, conditions_document, configuration_document
from millstream_harness.pages import blocks
from millstream_harness.specs import LOAD, MIRROR, REF, manifest, workload
from millstream_operator.local import manifests
from millstream_operator.models import ManifestError
from millstream_operator.models.cluster import BrokerResources
from millstream_operator.models.conditions import ConditionType, Reason
from millstream_operator.validation.admission import decode

pytestmark = pytest.mark.process

ROOT = Path(__file__).resolve().parents[1]
PROPERTIES = (ROOT / "broker-image/server.properties").read_text()


def test_commented_lines_of_server_properties_show_defaults() -> None:
    shown = dict(re.findall(r"^#([a-z][a-z.]*)=(.*)$", PROPERTIES, re.MULTILINE))
    assert len(shown) > 20
    assert shown == {key: as_text(BROKER_KEYS[key].default) for key in shown}


def test_examples_of_server_properties_are_valid_and_no_defaults() -> None:
    examples = dict(re.findall(r"^# Example: ([a-z.]+)=(.*)$", PROPERTIES, re.MULTILINE))
    assert set(examples) == {"advertised.listeners", "log.flush.interval.ms"}
    for key, value in examples.items():
        assert BROKER_KEYS[key].parse(value) != BROKER_KEYS[key].default
        assert not BROKER_KEYS[key].default


def test_server_properties_sets_nothing() -> None:
    assert [line for line in PROPERTIES.splitlines() if line and not line.startswith("#")] == []


def test_the_reference_shows_the_defaults_of_maps() -> None:
    page = (ROOT / "docs/resources/cluster.md").read_text()
    defaults = BrokerResources()
    for field, amounts in (("requests", defaults.requests), ("limits", defaults.limits)):
        anchor = f'<a id="spec.brokers.resources.{field}"></a>'
        (shown,) = re.findall(rf"\| {re.escape(anchor)}`{field}` \| .*? \| `(.*?)` \|", page)
        assert yaml.safe_load(f"{{{shown}}}") == amounts


def test_the_flights_example_writes_the_file_that_its_page_publishes() -> None:
    page = (ROOT / "examples/flights/README.md").read_text()
    script, written = re.findall(r"^python (\S+) > (\S+)", page, re.MULTILINE)[0]
    assert f"< {written}" in page
    process = subprocess.Popen(
        [sys.executable, ROOT / script], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert process.stdout is not None
    with process.stdout as lines:
        first = next(lines)
    process.kill()
    process.wait()
    assert re.fullmatch(rb'[A-Z0-9]{2}\t\{"year":2013,.*\}\n', first)


@pytest.mark.parametrize(
    ("page", "document"),
    [
        ("authorization", authorization_document),
        ("broker-configuration", configuration_document),
        ("conditions", conditions_document),
    ],
)
def test_a_generated_page_is_current(page: str, document: ModuleType) -> None:
    path = f"docs/reference/{page}.md"
    assert (ROOT / path).read_text() == document.page(), f"make {path}"


def test_every_condition_and_reason_is_explained() -> None:
    assert set(conditions_document.TYPES) == set(ConditionType)
    assert set(conditions_document.REASONS) == set(Reason)


def test_only_clusters_have_refused_pods() -> None:
    """refused_pods.py reads the Events of StatefulSets; a MirrorMaker's Deployment has a condition instead."""
    assert conditions_document.REASONS[Reason.PODS_REFUSED][0] == "Cluster"


def test_every_key_without_a_rule_takes_all_values_of_its_type() -> None:
    for key in BROKER_KEYS.values():
        numbers = key.type in (Type.INT, Type.LONG, Type.SHORT, Type.DOUBLE)
        assert key.inert or not numbers or key.rule, f"{key.name}: its range is not in the reference"


PAGES = [path for folder in ("docs", "examples") for path in sorted((ROOT / folder).rglob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_manifests_of_a_page_are_valid(page: Path, tmp_path: Path) -> None:
    """Whole manifests; references to Clusters on other pages stay unresolved."""
    for block in blocks(page.read_text()):
        if block.language != "yaml" or "apiVersion: millstream.dev" not in block.text:
            continue
        file = tmp_path / f"{block.line}.yaml"
        file.write_text(block.text)
        try:
            manifests.read(file, {})
        except manifests.ManifestError as error:
            wrong = [str(one) for one in error.problems if "there is no Cluster" not in str(one)]
            assert wrong == [], f"{page.name}:{block.line}"


def merged(least: Any, given: Any) -> Any:
    """The page's fields, over the smallest valid manifest."""
    if not isinstance(least, dict) or not isinstance(given, dict):
        return given
    return {**least, **{key: merged(least.get(key), value) for key, value in given.items()}}


def extension_points() -> list[tuple[str, str]]:
    """Names and files that the table of extension points links, of code and of tests."""
    page = (ROOT / "docs/architecture.md").read_text()
    table = page.partition("**Extension points.**")[2].partition("\n\n## ")[0]
    rows = [line.split(" | ") for line in table.splitlines() if line.startswith("| ")][1:]
    assert len(rows) > 5
    found = []
    for what, where, test in rows:
        places, tests = (re.findall(r"\[`([^`]+)`\]\(\.\./([^)]+\.py)\)", cell) for cell in (where, test))
        assert places, f"{what}: where is it?"
        assert tests, f"{what}: which test uses it?"
        found += places + tests
    return found


@pytest.mark.parametrize(("name", "file"), sorted(set(extension_points())))
def test_an_extension_point_is_where_the_table_says(name: str, file: str) -> None:
    dotted, _, arguments = name.partition("(")
    if file.startswith("tests/"):
        assert re.search(rf"^(async )?def {dotted}\(", (ROOT / file).read_text(), re.MULTILINE)
        return
    module = file.removesuffix(".py").partition("/src/")[2].replace("/", ".")
    found: Any = importlib.import_module(module)
    for part in dotted.split("."):
        assert hasattr(found, part) or part in getattr(found, "__annotations__", {}), f"{found} has no {part}"
        found = getattr(found, part, None)
    for argument in re.findall(r"(\w+)=", arguments):
        assert argument in inspect.signature(found).parameters


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_parts_of_manifests_on_a_page_are_valid(page: Path) -> None:
    """Blocks with only a `spec`: one kind must accept it, with the kind's required fields added."""
    group = {**REF, "topics": ["t"], "workload": workload()}
    least = {
        "Cluster": {},
        "Topic": REF,
        "User": REF,
        "ConsumerGroup": group,
        "MirrorMaker": MIRROR,
        "BatchLoad": LOAD,
    }
    for block in blocks(page.read_text()):
        if block.language == "yaml" and block.text.lstrip().startswith("spec:"):
            spec = yaml.safe_load(block.text)["spec"]
            errors = []
            for kind, required in least.items():
                try:
                    decode(manifest(kind, merged(required, spec)))
                except ManifestError as error:
                    errors.append(str(error))
            assert len(errors) < len(least), f"{page.name}:{block.line}: {errors}"


def test_every_page_is_in_the_navigation() -> None:
    class Loader(yaml.SafeLoader):
        pass

    Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda loader, suffix, node: None)
    navigation = json.dumps(yaml.load((ROOT / "mkdocs.yml").read_text(), Loader=Loader)["nav"])
    named = set(re.findall(r'"([^"]+\.md)"', navigation))
    pages = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")}
    assert sorted(pages - named) == [], "add them to nav in mkdocs.yml"


def test_claims_about_speed_and_memory_agree_with_the_table() -> None:
    """README, comparison and questions: half a second to start, tens of MB, fewer CPU seconds than Apache Kafka."""
    page = (ROOT / "docs/performance.md").read_text()
    (start,) = re.findall(r"^\| Start to the first acknowledged record \| time, s \| ([\d.]+) \|", page, re.M)
    assert float(start) <= 0.55
    (memory,) = re.findall(r"^\| Start to the first .*\n.*\n\|  \| memory, MB \| ([\d.]+) \|", page, re.M)
    assert float(memory) < 100
    cpu = re.findall(r"\| broker CPU, s \| ([\d.]+) \| ([\d.]+) \|", page)
    assert len(cpu) > 15
    assert [(ours, kafkas) for ours, kafkas in cpu if float(ours) >= float(kafkas)] == []
