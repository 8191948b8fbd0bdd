"""Pictures of dashboards show each panel of each dashboard, with its series, its units, or that there is no data."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from millstream_harness.dashboard_drawing import Series, amount, draw

DASHBOARDS = sorted((Path(__file__).parents[2] / "charts/millstream/dashboards").glob("*.json"))
LABELS = {
    name: name.upper() for name in ("namespace", "cluster", "group", "topic", "pod", "state", "kind", "name")
}


def one_series(expression: str) -> Sequence[Series]:
    assert "$" not in expression
    return [(LABELS, [(1_700_000_000.0 + second, second * 1000.0) for second in range(5)])]


def texts(figure: Figure) -> list[str]:
    return [text.get_text() for axes in figure.axes for text in axes.texts]


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_picture_has_each_panel(path: Path) -> None:
    dashboard = json.loads(path.read_text())
    figure = draw(dashboard, one_series)
    assert [axes.get_title(loc="left") for axes in figure.axes] == [
        panel["title"] for panel in dashboard["panels"]
    ]
    assert "no data" not in texts(figure)
    for axes, panel in zip(figure.axes, dashboard["panels"], strict=True):
        if panel["type"] == "timeseries":
            assert len(axes.lines) == len(panel["targets"])


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_picture_says_which_panels_have_no_data(path: Path) -> None:
    dashboard = json.loads(path.read_text())
    assert texts(draw(dashboard, lambda _: [])) == ["no data"] * len(dashboard["panels"])


def test_table_shows_only_what_is_there_at_the_end() -> None:
    """A run that succeeded was running before: its earlier state is no second row."""
    dashboard = json.loads(next(path for path in DASHBOARDS if path.stem.endswith("-loads")).read_text())

    def query(expression: str) -> Sequence[Series]:
        return [({"state": "Running"}, [(10.0, 1.0), (20.0, 1.0)]), ({"state": "Succeeded"}, [(30.0, 1.0)])]

    shown = texts(draw(dashboard | {"panels": [dashboard["panels"][-1]]}, query))
    assert [text.split("   ")[0] for text in shown] == ["state: Succeeded"]


@pytest.mark.parametrize(
    ("value", "unit", "shown"),
    [
        (0.25, "percentunit", "25%"),
        (0.0123, "s", "12.3 ms"),
        (3.0, "s", "3 s"),
        (1_500_000.0, "Bps", "1.5 MB/s"),
        (7.0, "bytes", "7 B"),
        (3.0, "none", "3"),
        (12_345.0, "none", "12.3 k"),
        (float("nan"), "none", "-"),
    ],
)
def test_amounts_have_their_units(value: float, unit: str, shown: str) -> None:
    assert amount(value, unit) == shown
