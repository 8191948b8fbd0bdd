"""What pages written by hand name in code exists: metrics, alerts, fields of resources."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from millstream_broker.observability.metric_table import TABLE as BROKER
from millstream_mirror.partitions.metrics import TABLE as MIRROR
from millstream_operator.state.metric_table import TABLE as OPERATOR

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted(
    path
    for pattern in ("*.md", "docs/**/*.md", "examples/**/*.md", "spark-operator-jobs/*.md")
    for path in ROOT.glob(pattern)
)
RULES = (ROOT / "charts/millstream/rules/millstream.yaml").read_text()
METRICS = {metric.name for table in (BROKER, MIRROR, OPERATOR) for metric in table}
METRICS |= set(re.findall(r"record: (\S+)", RULES))


def spans(page: Path) -> list[str]:
    """Code within sentences."""
    return re.findall(r"`([^`\n]+)`", re.sub(r"^ *```.*?^ *```$", "", page.read_text(), flags=re.M | re.S))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_metric_and_alert_on_a_page_exist(page: Path) -> None:
    modules = {path.name for path in ROOT.glob("*/src/millstream*")} | {
        "millstream_harness",
        "millstream_faults",
    }
    for span in spans(page):
        for name in re.findall(r"\bmillstream_[a-z_]+", span):
            series = re.sub(r"_(bucket|sum|count)$", "", name)
            assert {name, series} & (METRICS | modules), name
    for alert in re.findall(r"^## (Millstream\w+)$", page.read_text(), re.MULTILINE):
        assert f"alert: {alert}\n" in RULES, alert


def paths(schema: dict[str, Any], path: str) -> Iterator[str]:
    yield path
    for name, field in schema.get("properties", {}).items():
        yield from paths(field, f"{path}.{name}")
        yield from paths(field.get("items", {}), f"{path}.{name}")
    if schema.get("additionalProperties") or schema.get("x-kubernetes-preserve-unknown-fields"):
        yield f"{path}.*"


FIELDS: set[str] = set()
for crd in (ROOT / "crds").glob("*.yaml"):
    (version,) = yaml.safe_load(crd.read_text())["spec"]["versions"]
    for part in ("spec", "status"):
        FIELDS |= set(paths(version["schema"]["openAPIV3Schema"]["properties"][part], part))


OF_OTHERS = {"spec.kafka.config", "status.hostIP"}
"""Of Strimzi's Kafka, and of a pod."""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_field_of_a_resource_on_a_page_exists(page: Path) -> None:
    for span in spans(page):
        if re.fullmatch(r"(spec|status)(\.[a-zA-Z0-9]+)+", span) and span not in OF_OTHERS:
            above = span.rpartition(".")[0]
            assert span in FIELDS or f"{above}.*" in FIELDS, span
