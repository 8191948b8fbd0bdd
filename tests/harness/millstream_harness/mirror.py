"""A mirror worker as a real process on a free port, and helpers for its source and target."""

from __future__ import annotations

import asyncio
import functools
import json
import os
import re
import sys
import time
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, Self

from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from millstream_kafka.batch import iter_batches, read_records
from millstream_kafka.client import ClusterClient
from millstream_mirror.kafka.log_reader import EARLIEST, offset_at, read

from .broker import AnyBroker
from .daemon import Daemon
from .scenario import eventually


class Peer(Protocol):
    """A broker or a cluster, of either kind."""

    @property
    def bootstrap(self) -> str: ...


OF_MIRRORS = {
    "group.initial.rebalance.delay.ms": "200",
    "offsets.topic.num.partitions": "3",
    "log.cleaner.backoff.ms": "100",
}
"""Configuration of a broker that mirrors read and write."""
START_MS = int(time.time() * 1000)  # of the first record: recent, so that no broker deletes it
READY = re.compile(r"ready: mirror=(?P<name>\S+) http=(?P<http>\S+)")


class MirrorProcess(Daemon):
    """One worker; ``start``, ``stop`` (SIGTERM) and ``kill`` (SIGKILL) any number of times."""

    name = "the mirror"

    def __init__(
        self,
        folder: Path,
        sources: Mapping[str, str],
        target: str,
        *,
        security: Mapping[str, Mapping[str, Any]] | None = None,
        entering: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        **config: Any,
    ) -> None:
        """A worker with this configuration, and with these variables besides its parent's.

        ``security``: more fields of sources, by name, and of the "target". ``entering``: the command that runs the
        worker elsewhere, such as at the far end of a `Link`.
        """
        super().__init__(folder, "mirror.log")
        self._entering = entering
        self._environment = environment or {}
        more = security or {}
        self.config = {
            "name": "test",
            "sources": [
                {"name": name, "bootstrap": bootstrap, **more.get(name, {})}
                for name, bootstrap in sources.items()
            ],
            "target": {"bootstrap": target, **more.get("target", {})},
            "http": "127.0.0.1:0",
            **config,
        }
        self.http = ""

    @property
    def command(self) -> list[str]:
        worker = str(Path(sys.executable).parent / "millstream-mirror")
        return [*self._entering, worker, str(self.folder / "mirror.json")]

    def prepare(self) -> None:
        """Write mirror.json."""
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "mirror.json").write_text(json.dumps(self.config))

    def start(self) -> Self:
        """Start it and wait for its ready line; RuntimeError with its output if it ends first."""
        self.prepare()
        begun = self.printed()
        self.launch(self.command, os.environ | self._environment)
        self.await_ready(self._is_ready, begun)
        return self

    def _is_ready(self, said: str) -> bool:
        if found := READY.search(said):
            self.http = f"http://{found['http']}"
        return found is not None

    def get(self, path: str) -> str:
        with urllib.request.urlopen(self.http + path, timeout=30) as response:
            text: str = response.read().decode()
        return text

    def status(self) -> dict[str, Any]:
        status: dict[str, Any] = json.loads(self.get("/status"))
        return status

    def records(self) -> int:
        """Number of records written since its start."""
        lines = self.get("/metrics").splitlines()
        return sum(
            int(float(line.split()[-1]))
            for line in lines
            if line.startswith("millstream_mirror_records_total{")
        )


async def read_batches(bootstrap: str, topic: str, partition: int) -> list[bytes]:
    """All record batches of a partition, as stored. Raises ApiError, BrokerError."""
    where = (topic, partition)
    async with ClusterClient(bootstrap) as cluster:
        return await batches_from(cluster, where, await offset_at(cluster, where, EARLIEST))


async def batches_from(cluster: ClusterClient, where: tuple[str, int], offset: int) -> list[bytes]:
    """The record batches of a partition from an offset on, as stored. Raises ApiError, BrokerError."""
    batches: list[bytes] = []
    while True:
        answer = await read(cluster, where, offset, 1 << 20)
        assert answer.error_code == 0, f"{where}: offset {offset} was deleted meanwhile"
        records = answer.records if isinstance(answer.records, memoryview) else memoryview(b"")
        before = offset
        for start, header in iter_batches(records):
            batches.append(bytes(records[start : start + header.size]))
            offset = header.next_offset
        if offset == before:
            return batches


def numbers(broker: Peer, topic: str, partition: int = 0) -> list[int]:
    """Of the partition's records, as `produce` numbers them."""
    return [
        int((record.value or b"").removeprefix(b"value-"))
        for batch in asyncio.run(read_batches(broker.bootstrap, topic, partition))
        for record in read_records(batch)
    ]


def stored(broker: AnyBroker, topic: str, partition: int = 0) -> bytes:
    """A partition's batches, from the broker's files."""
    folder = broker.data / f"{topic}-{partition}"
    return b"".join(path.read_bytes() for path in sorted(folder.glob("*.log")))


def admin(broker: Peer) -> AdminClient:
    return _admin_at(broker.bootstrap)


def new_admin(broker: Peer) -> AdminClient:
    """An admin client that looks up leaders and coordinators: an older one keeps its own.

    Keep it until you have its response.
    """
    return AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})


@functools.cache  # responses are lost with their client
def _admin_at(bootstrap: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})


def create(broker: Peer, topic: str, partitions: int = 1, **config: str) -> None:
    settings = {key.replace("_", "."): value for key, value in config.items()}
    spec = NewTopic(topic, partitions, 1, config=settings)
    admin(broker).create_topics([spec])[topic].result(20)


def delete(broker: Peer, topic: str) -> None:
    """Return once the topic is gone, or is another one that a mirror has created."""

    async def topic_id() -> str:
        async with ClusterClient(broker.bootstrap) as cluster:
            (found,) = (await cluster.metadata([topic])).topics
            return "" if found.error_code else str(found.topic_id)

    before = asyncio.run(topic_id())
    admin(broker).delete_topics([topic])[topic].result(20)
    eventually(lambda: asyncio.run(topic_id()), lambda now: now != before, f"{topic} is deleted", 20)


def produce(broker: Peer, topic: str, values: range, partitions: int = 1, **config: Any) -> None:
    settings = {key.replace("_", "."): value for key, value in config.items()}
    producer = Producer({"bootstrap.servers": broker.bootstrap, "log_level": 0, **settings})
    for value in values:
        while True:
            try:
                producer.produce(
                    topic,
                    b"value-%d" % value,
                    key=b"key-%d" % (value % 50),
                    partition=value % partitions,
                    timestamp=START_MS + value,
                    headers=[("number", b"%d" % value)],
                )
                break
            except BufferError:
                producer.poll(0.1)
    assert producer.flush(60) == 0


NOT_LED_YET = frozenset(
    {
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
    }
)
"""The client's metadata is older than the broker, or the broker older than the topic: it may yet become leader."""


def arrived(broker: Peer, topic: str, counts: list[int], seconds: float = 60) -> None:
    """Wait until the partitions have this many records; fail if they have more."""

    def ends() -> list[int]:
        found = admin(broker).list_topics(timeout=10).topics.get(topic)
        if found is None or len(found.partitions) != len(counts):
            return []
        partitions = [TopicPartition(topic, number) for number in range(len(counts))]
        spec: Any = OffsetSpec
        offsets = admin(broker).list_offsets({each: spec.latest() for each in partitions})
        try:
            return [offsets[each].result(20).offset for each in partitions]
        except KafkaException as error:
            if error.args[0].code() not in NOT_LED_YET:
                raise
            return []

    def enough(now: list[int]) -> bool:
        return bool(now) and all(one >= wanted for one, wanted in zip(now, counts, strict=True))

    assert eventually(ends, enough, f"records of {topic} in the target", seconds) == counts


class Looks:
    """Waits until a worker has checked its source again, and so knows the topics that are new there.

    Its ``topics.include`` needs ``pattern``.
    """

    def __init__(self, source: Peer, target: Peer, prefix: str) -> None:
        self._source, self._target = source, target
        self._prefix = f"{prefix}-own-"
        self.pattern = f"{self._prefix}.*"
        self._count = 0

    def twice(self) -> None:
        for _ in range(2):  # after the second one, it copies the topics of the first check
            self._count += 1
            topic = f"{self._prefix}{self._count}"
            create(self._source, topic)
            produce(self._source, topic, range(10))
            arrived(self._target, topic, [10])
