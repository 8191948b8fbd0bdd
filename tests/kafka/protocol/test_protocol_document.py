"""docs/protocol.md agrees with the broker, and with Kafka."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from millstream_broker import api
from millstream_broker.network.handlers import REGISTERED
from millstream_harness import protocol_document as document
from millstream_harness.kafka import KafkaProcess
from millstream_harness.protocol import APIS
from millstream_kafka.client import Connection
from millstream_kafka.protocol import metadata

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[3]


def test_the_page_is_current() -> None:
    api.load()
    written = document.page({key: found.api for key, found in REGISTERED.items()})
    committed = (ROOT / "docs/protocol.md").read_text()
    assert committed == written, "run: make docs/protocol.md"


def test_its_links_lead_somewhere() -> None:
    for link in re.findall(r"\]\(([^)]+)\)", (ROOT / "docs/protocol.md").read_text()):
        assert (ROOT / "docs" / link.partition("#")[0]).exists(), link


def test_a_gap_without_a_reason_is_refused() -> None:
    with pytest.raises(ValueError, match=r"ABSENT explains .*, absent are .*'Metadata'"):
        document.page({key: found for key, found in APIS.items() if found is not metadata.API})


def test_every_key_is_kafkas() -> None:
    assert {found.name: key for key, found in APIS.items()}.items() <= {
        name: key for name, (key, _, _) in document.KAFKA.items()
    }.items() | document.ZOOKEEPER.items() | document.OWN.items()


async def test_kafkas_versions_are_what_kafka_says(kafka_jars: Path, tmp_path: Path) -> None:
    with KafkaProcess(tmp_path) as kafka:
        host, port = kafka.bootstrap.split(":")
        connection = await Connection.open(host, int(port))
        await connection.close()
    assert connection.versions == {key: (low, high) for key, low, high in document.KAFKA.values()}
