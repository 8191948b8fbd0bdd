"""The consumer API of the Kafka paper: a connector creates message streams, which share a topic's messages.

    with millstream.connect("localhost:9092", group="boards") as connector:
        streams = connector.create_message_streams({"flights": 4})
        for message in streams["flights"][0]:
            …

Source: Kreps, Narkhede, Rao: Kafka: a Distributed Messaging System for Log Processing (2011), section 3.1.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from millstream.client_config import DEFAULT_BOOTSTRAP
from millstream.connection import Cluster, cluster_of, unexpected
from millstream.consuming.group import GroupMembership
from millstream.consuming.message import Decoders
from millstream.consuming.settings import ConnectorSettings
from millstream.consuming.stream import MessageStream
from millstream.errors import BadInput, Closed, MillstreamError, MissingExtra
from millstream.serdes import Deserializer, deserializer
from millstream.topics import require_topics

MAX_STREAMS = 1000
"""Most streams of one connector: each has connections and threads of its own."""


def connect(
    bootstrap: str | Cluster | None = None,
    *,
    group: str,
    key_deserializer: Deserializer | None = None,
    value_deserializer: Deserializer | None = None,
    **options: Any,
) -> Connector:
    """A connector for a consumer group. ``options``: the fields of `ConnectorSettings`.

    ``bootstrap``: "HOST:PORT", several separated by commas, or a Cluster; default: localhost:9092, or with
    ``coordination="zookeeper"`` the brokers that are registered there. Deserializers: a Serde or a callable from
    bytes; without one, keys and values are bytes. Raises Unreachable within seconds when no broker answers, BadInput
    for options.
    """
    if not isinstance(group, str) or not re.fullmatch(r"[^\x00-\x1f/]{1,249}", group):
        raise BadInput(
            f"group: {group!r} is not allowed", 'write 1 to 249 characters without control characters and "/"'
        )
    try:
        settings = ConnectorSettings(**options)
    except TypeError as error:
        raise unexpected("connect", error, ConnectorSettings) from None
    decoders = Decoders(deserializer(key_deserializer), deserializer(value_deserializer))
    consumer = _consumer(group, settings) if settings.coordination == "zookeeper" else None
    try:
        if bootstrap is None:
            bootstrap = DEFAULT_BOOTSTRAP if consumer is None else consumer.registry.brokers()
        cluster = cluster_of(bootstrap, settings.config)
        _ = cluster.admin
    except BaseException:
        if consumer is not None:
            consumer.close()
        raise
    return Connector(cluster, group, decoders, settings, consumer)


def _consumer(group: str, settings: ConnectorSettings) -> Any:
    """This process in ZooKeeper's registries; kazoo is imported here."""
    try:
        from millstream.consuming.zookeeper.consumer import Consumer
    except ImportError:
        raise MissingExtra("zookeeper is not installed", "pip install 'millstream[zookeeper]'") from None
    return Consumer(group, settings)


class Connector:
    """Takes part in a group. Close it, or use it in ``with`` or ``async with``: others then take over at once."""

    def __init__(
        self,
        cluster: Cluster,
        group: str,
        decoders: Decoders,
        settings: ConnectorSettings,
        consumer: Any = None,
    ) -> None:
        self.cluster, self.group, self.settings = cluster, group, settings
        self._decoders = decoders
        self._streams: list[MessageStream] = []
        self._consumer = consumer  # in ZooKeeper
        self._closed = False

    def create_message_streams(self, topics: Mapping[str, int]) -> dict[str, list[MessageStream]]:
        """Create this number of streams per topic; each partition belongs to one stream of the group at a time.

        If a group has more streams than a topic has partitions, some streams get no messages. Raises UnknownTopic,
        BadInput for counts, Closed. With ``coordination="zookeeper"`` it can be called once.
        """
        if self._closed:
            raise Closed("the connector is closed", "connect again")
        if not isinstance(topics, Mapping):
            raise BadInput(f"topics: {topics!r} is not allowed", 'write {"TOPIC": STREAMS}')
        if not topics:
            raise BadInput("topics: empty", 'write {"TOPIC": STREAMS}')
        for topic, count in topics.items():
            if type(count) is not int or count < 1:
                raise BadInput(
                    f"topics: {count!r} streams of {topic} are not allowed", "write a number from 1"
                )
        if len(self._streams) + sum(topics.values()) > MAX_STREAMS:
            raise BadInput(f"topics: more than {MAX_STREAMS:,} streams are not allowed", "use more processes")
        if self._consumer is not None and self._streams:
            raise BadInput(
                "topics: this connector already has streams", "create all streams of a connector at once"
            )
        require_topics(self.cluster, topics)
        config = self.settings.client_config(self.cluster, self.group)
        found: dict[str, list[MessageStream]] = {topic: [] for topic in topics}
        for topic, count in topics.items():
            for number in range(count):
                membership = (
                    GroupMembership(self.settings)
                    if self._consumer is None
                    else self._consumer.membership(topic, number)
                )
                stream = MessageStream(self.cluster, topic, config, self._decoders, self.settings, membership)
                found[topic].append(stream)
                self._streams.append(stream)
        if self._consumer is not None:
            self._consumer.start(dict(topics))
        return found

    def commit(self) -> None:
        """Commit the position of each stream after the last message taken from it, and wait for the commits.

        The messages must be processed: call it from the thread that processes them, or while none is being processed.
        """
        for stream in self._streams:
            stream.commit()

    def close(self) -> None:
        """Commit processed messages (unless ``commit="manual"``), leave the group, and end all streams."""
        self._closed = True
        if self._consumer is not None:
            self._consumer.stop()
        problem: MillstreamError | None = None
        for stream in self._streams:
            try:
                stream.close()
            except MillstreamError as error:
                problem = problem or error
        if self._consumer is not None:
            self._consumer.close()
        if problem is not None:
            raise problem

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
