"""A broker on the test's own event loop, for tests that control its turns."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest

from millstream_broker.broker import Broker
from millstream_broker.cluster.joining import OpenStore
from millstream_broker.config.config import BrokerConfig
from millstream_broker.log.append_origin import AppendOrigin
from millstream_broker.log.log import Log
from millstream_broker.log.validator import Validated
from millstream_broker.startup import start
from millstream_kafka.client.connection import Connection
from millstream_kafka.protocol import alter_configs, create_topics, delete_topics

TOPIC_RESOURCE = 2


@contextlib.asynccontextmanager
async def running(
    folder: Path, config: Mapping[str, str] | None = None, open_shared: OpenStore | None = None
) -> AsyncIterator[Broker]:
    """A running broker, until the block ends; `open_shared` opens the store that it shares with others."""
    broker, _ = await start(
        BrokerConfig(
            {
                "log.dirs": str(folder),
                "listeners": "PLAINTEXT://127.0.0.1:0",
                "http.listener": "127.0.0.1:0",
                **(config or {}),
            }
        ),
        open_shared,
    )
    try:
        yield broker
    finally:
        await broker.stop()


@contextlib.asynccontextmanager
async def connected(broker: Broker) -> AsyncIterator[Connection]:
    """A client connected to its first listener."""
    (listener, *_) = next(iter(broker.replicas.metadata.state.brokers.values())).listeners
    client = await Connection.open(listener.host, listener.port)
    try:
        yield client
    finally:
        await client.close()


async def create(client: Connection, topic: str, partitions: int = 1, **config: str) -> None:
    """Create a topic; keys of its configuration have `_` for `.`."""
    configs = [
        create_topics.CreatableTopicConfig(key.replace("_", "."), value) for key, value in config.items()
    ]
    wanted = create_topics.CreatableTopic(topic, partitions, 1, [], configs)
    answer = await client.call(create_topics.API, 7, create_topics.CreateTopicsRequest([wanted], 10_000))
    assert answer.topics[0].error_code == 0, answer.topics[0].error_message


async def configure(client: Connection, topic: str, **config: str) -> None:
    """Replace the topic's overrides."""
    configs = [alter_configs.AlterableConfig(key.replace("_", "."), value) for key, value in config.items()]
    resource = alter_configs.AlterConfigsResource(TOPIC_RESOURCE, topic, configs)
    answer = await client.call(alter_configs.API, 2, alter_configs.AlterConfigsRequest([resource]))
    assert answer.responses[0].error_code == 0, answer.responses[0].error_message


async def delete(client: Connection, topic: str) -> None:
    request = delete_topics.DeleteTopicsRequest([delete_topics.DeleteTopicState(topic)], timeout_ms=10_000)
    answer = await client.call(delete_topics.API, 6, request)
    assert answer.responses[0].error_code == 0


class HeldAdmission:
    """Holds batches in the admission thread until `release`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._entered = threading.Semaphore(0)
        self._released = threading.Event()
        validate = Log.validate

        def held(log: Log, batches: bytearray, *, now_ms: int, origin: AppendOrigin) -> Validated:
            self._entered.release()
            assert self._released.wait(60)
            return validate(log, batches, now_ms=now_ms, origin=origin)

        monkeypatch.setattr(Log, "validate", held)

    async def entered(self) -> None:
        """Return once a batch is in the thread."""
        assert await asyncio.to_thread(self._entered.acquire, timeout=60)

    def release(self) -> None:
        self._released.set()
