"""Each Python example on the site runs: those of the library here, with brokers and a ZooKeeper of their own."""

from __future__ import annotations

import re
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import millstream
from millstream.topics import create_topic
from millstream_harness.cluster import ClusterProcesses
from millstream_harness.in_process_broker import InProcessBroker
from millstream_harness.pages import SITE, blocks, run_page
from millstream_harness.zookeeper import ZooKeeperProcess

pytestmark = pytest.mark.soak

ROOT = Path(__file__).parents[2]
LIBRARY = sorted((ROOT / "docs/client").glob("*.md"))
ADDRESSES = {
    "zk1:2181,zk2:2181/kafka": "ZOOKEEPER",
    "127.0.0.1:2181": "ZOOKEEPER",
    "localhost:9092": "BROKER",
}
"""Addresses on the pages, and the settings that they stand for."""

COMPARED = {"docs/how-to/connect-securely.md": "tests/compat/test_page_of_logins.py"}
"""Pages whose examples a test compares with configurations that it runs."""

TOPICS = {
    "CONTRIBUTING.md": ["orders"],
    "exactly-once.md": ["flights", "departures", "announcements"],
    "serdes.md": ["delays"],
}
"""Topics of pages that need others than the library's."""


def examples(page: Path) -> list[str]:
    return [block.text for block in blocks(page.read_text()) if block.language == "python"]


PAGES = [page for page in (*LIBRARY, ROOT / "docs/loads.md", ROOT / "CONTRIBUTING.md") if examples(page)]


def test_every_page_is_listed() -> None:
    (index,) = (page for page in LIBRARY if page.name == "README.md")
    assert set(re.findall(r"\]\((\w[\w-]*\.md)\)", index.read_text())) == {page.name for page in LIBRARY} - {
        "README.md"
    }


def test_every_example_is_run() -> None:
    """By these tests, or with its whole page; an example in another language block would never run."""
    whole = (ROOT / "tests/examples/test_pages.py").read_text()
    for page in SITE:
        name = str(page.relative_to(ROOT))
        fences = re.findall(r"^ *```+(?=\S)(.*)$", page.read_text(), re.MULTILINE)
        ours = [fence for fence in fences if fence.startswith("py")]
        assert {fence.partition(" ")[0] for fence in ours} <= {"python"}, name
        assert len(ours) == len(examples(page)), name
        assert not ours or page in PAGES or f'"{name}"' in whole or name in COMPARED, name
    assert sum(len(examples(page)) for page in PAGES) > 20
    for name, test in COMPARED.items():
        assert Path(name).name in (ROOT / test).read_text(), name


@pytest.fixture
def cluster(shared_zookeeper: ZooKeeperProcess, tmp_path: Path) -> Iterator[ClusterProcesses]:
    """One broker on ZooKeeper."""
    with ClusterProcesses(tmp_path, 1, zookeeper=shared_zookeeper) as cluster:
        yield cluster


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_examples_run(cluster: ClusterProcesses, page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for topic in TOPICS.get(page.name, ("flights", "readings", "dead-letters", "audits")):
        create_topic(millstream.Cluster(cluster.bootstrap), topic, partitions=4)
        if page not in LIBRARY:
            with millstream.Producer(cluster.bootstrap) as producer:
                producer.send(topic, b"one", partition=0)
    monkeypatch.chdir(cluster.brokers[1].folder)
    for number, example in enumerate(examples(page)):
        module = types.ModuleType(f"example_{page.stem}_{number}".replace("-", "_"))
        monkeypatch.setitem(sys.modules, module.__name__, module)  # where msgspec looks for annotations
        code = example
        for address, what in ADDRESSES.items():
            code = code.replace(address, cluster.connect if what == "ZOOKEEPER" else cluster.bootstrap)
        exec(compile(code, f"{page.name}, example {number + 1}", "exec"), vars(module))


@pytest.mark.parametrize(
    ("page", "topics"), [("docs/command.md", ()), ("docs/client/auditing.md", ("flights", "audits"))]
)
def test_commands_run(
    start_broker: Callable[..., InProcessBroker], page: str, topics: tuple[str, ...], tmp_path: Path
) -> None:
    broker = start_broker({"group.initial.rebalance.delay.ms": "0"})
    for topic in topics:
        create_topic(millstream.Cluster(broker.bootstrap), topic, partitions=4)
    folder = tmp_path / "page"
    folder.mkdir()
    (folder / "flights.tsv").write_text("".join(f"UA\tflight {number}\n" for number in range(20)))
    environment = {"MILLSTREAM_BOOTSTRAP": broker.bootstrap}
    assert run_page(ROOT / page, folder, replace={"localhost:9092": broker.bootstrap}, env=environment) > 0
