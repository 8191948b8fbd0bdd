"""The common part of all clients: the end, the history, and what they know about their topic."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, Message

from millstream_harness.ledger import PATIENT

from .history import HistoryWriter, Read, Trouble, parse_value
from .probe import Known, Probe
from .topics import STEADY
from .users import Login

GIVE_UP_MS = 600_000
FINISH_S = 90.0
FLUSH_S = 0.5
LOOK_S = 0.25
"""Interval between look-ups of a topic that may be recreated."""
CONSUMER = {
    **{key: value for key, value in PATIENT.items() if key != "message.timeout.ms"},
    "retry.backoff.max.ms": "200",
    "check.crcs": "true",
    "enable.auto.commit": "false",
    "auto.offset.reset": "error",
    "fetch.wait.max.ms": "100",
    "socket.timeout.ms": "5000",
    "topic.metadata.refresh.interval.ms": "2000",
}


class Worker:
    """``known`` is the topic's id and partition count, kept up to date if the topic is recreated."""

    def __init__(self, name: str, history: Path, bootstrap: str, topic: str, known: Known) -> None:
        self.name, self.bootstrap, self.topic, self.known = name, bootstrap, topic, known
        self.login = Login.of_environment()
        """How it logs in; None: it need not."""
        self.history = HistoryWriter(history)
        self.began = time.monotonic()
        self.ending = threading.Event()
        self._flushed = 0.0

    @property
    def partitions(self) -> int:
        return self.known.partitions

    def look_around(self) -> None:
        """In a thread, keep `known` up to date if the topic may be recreated."""
        if self.topic != STEADY:
            threading.Thread(target=lambda: asyncio.run(self._look()), name="look", daemon=True).start()

    async def _look(self) -> None:
        async with self.probe() as probe:
            while not self.ending.is_set():
                self.known = await probe.topic(self.topic) or self.known
                await asyncio.sleep(LOOK_S)

    def run(self) -> None:
        """Work until ``ending`` is set."""
        raise AssertionError(f"{type(self).__name__} does nothing")

    def wait(self, seconds: float) -> bool:
        """Wait this many seconds; return False at the end of the run."""
        return not self.ending.wait(seconds)

    def trouble(self, text: str) -> None:
        self.history.add(Trouble(time.monotonic(), self.name, text))

    def flush_now_and_then(self) -> None:
        if time.monotonic() - self._flushed > FLUSH_S:
            self._flushed = time.monotonic()
            self.history.flush()

    def consumer(self, group: str, more: Mapping[str, str] | None = None) -> Consumer:
        return Consumer({**self.librdkafka, "group.id": group, **CONSUMER, **(more or {})})

    @property
    def librdkafka(self) -> dict[str, str]:
        """How librdkafka connects."""
        return {"bootstrap.servers": self.bootstrap, **({} if self.login is None else self.login.librdkafka)}

    def probe(self) -> Probe:
        return Probe(self.bootstrap, self.name, None if self.login is None else self.login.security)

    def saw(self, who: str, message: Message) -> int | None:
        """Record a consumer's message; return the offset after it."""
        error = message.error()
        if error is not None:
            self.saw_error(who, error)
            return None
        offset, partition = message.offset(), message.partition()
        assert offset is not None
        assert partition is not None
        writer, written_to, number = parse_value(message.value() or b"")
        if written_to != partition:
            writer, number = f"?{writer} of {written_to}", -1
        self.history.add(
            Read(time.monotonic(), who, partition, offset, writer, number, self.known.id, self.began)
        )
        return offset + 1

    def saw_error(self, who: str, error: KafkaError) -> None:
        """Brokers may be away, but the log must stay."""
        bad = (
            KafkaError._AUTO_OFFSET_RESET,
            KafkaError._LOG_TRUNCATION,
            KafkaError._BAD_MSG,
            KafkaError._FATAL,
            KafkaError.OFFSET_OUT_OF_RANGE,
        )
        if error.code() in bad or error.fatal():
            self.trouble(f"{who}: {error}")
