"""docs/metrics.md equals the output of the programs' own tables."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from millstream_broker.observability.metric_table import TABLE as BROKER
from millstream_harness.metrics_document import page
from millstream_mirror.partitions.metrics import TABLE as MIRROR
from millstream_operator.state.metric_table import TABLE as OPERATOR
from millstream_process.metrics import OTHERS, Metric, Page, bounded

ROOT = Path(__file__).resolve().parents[2]
TABLES = {"broker": BROKER, "mirror": MIRROR, "operator": OPERATOR}


def test_the_document_is_up_to_date() -> None:
    assert (ROOT / "docs/metrics.md").read_text() == page(), "run: make docs/metrics.md"


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES.keys())
def test_names_follow_prometheus_conventions(table: tuple[Metric, ...]) -> None:
    assert len({one.name for one in table}) == len(table)
    for one in table:
        assert re.fullmatch(r"millstream(_[a-z]+)+", one.name), one
        assert one.name.endswith("_total") == (one.kind == "counter"), one
        assert one.kind != "histogram" or one.name.endswith("_seconds"), one
        assert one.text.endswith("."), one
        assert one.unit, one


def test_a_page_refuses_what_its_table_does_not_have() -> None:
    with pytest.raises(KeyError):
        Page(BROKER).add("millstream_secret", 1)


def test_beyond_the_bound_values_are_added_up() -> None:
    values = {(f"t{number:03}",): float(number) for number in range(100)}
    assert bounded(values, 100) == values
    found = bounded(values, 10)
    assert len(found) == 10
    assert found["t008",] == 8
    assert found[OTHERS,] == sum(range(9, 100))
