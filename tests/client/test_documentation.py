"""Each example on the library's pages runs, on its own broker."""

from __future__ import annotations

import re
import sys
import types
from collections.abc import Callable
from pathlib import Path

import pytest

import millstream
from millstream.topics import create_topic
from millstream_harness.broker import BrokerProcess
from millstream_harness.pages import run_page

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs/client").glob("*.md"))
EXAMPLE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_every_page_is_listed() -> None:
    (index,) = (page for page in PAGES if page.name == "README.md")
    assert set(re.findall(r"\]\((\w[\w-]*\.md)\)", index.read_text())) == {page.name for page in PAGES} - {
        "README.md"
    }


@pytest.mark.parametrize(
    "page", [page for page in PAGES if EXAMPLE.search(page.read_text())], ids=lambda page: page.stem
)
def test_examples_run(
    start_broker: Callable[..., BrokerProcess], page: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = start_broker({"group.initial.rebalance.delay.ms": "0"})
    for topic in ("flights", "readings", "dead-letters", "audits"):
        create_topic(millstream.Cluster(broker.bootstrap), topic, partitions=4)
    for number, example in enumerate(EXAMPLE.findall(page.read_text())):
        module = types.ModuleType(f"example_{page.stem}_{number}".replace("-", "_"))
        monkeypatch.setitem(sys.modules, module.__name__, module)  # where msgspec looks for annotations
        code = example.replace("localhost:9092", broker.bootstrap)
        exec(compile(code, f"{page.name}, example {number + 1}", "exec"), vars(module))


@pytest.mark.parametrize(
    ("page", "topics"), [("docs/command.md", ()), ("docs/client/auditing.md", ("flights", "audits"))]
)
def test_commands_run(
    start_broker: Callable[..., BrokerProcess], page: str, topics: tuple[str, ...], tmp_path: Path
) -> None:
    broker = start_broker({"group.initial.rebalance.delay.ms": "0"})
    for topic in topics:
        create_topic(millstream.Cluster(broker.bootstrap), topic, partitions=4)
    folder = tmp_path / "page"
    folder.mkdir()
    (folder / "flights.tsv").write_text("".join(f"UA\tflight {number}\n" for number in range(20)))
    environment = {"MILLSTREAM_BOOTSTRAP": broker.bootstrap}
    assert run_page(ROOT / page, folder, replace={"localhost:9092": broker.bootstrap}, env=environment) > 0
