"""kill -9 again and again under load: what was acknowledged is there, once and in order."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from millstream_harness.broker import BrokerProcess
from millstream_harness.ledger import Load, check

ROUNDS = int(os.environ.get("MILLSTREAM_KILLS", "10"))
PARTITIONS = 2
TOPICS = {
    "plain": {},
    "small-segments": {"segment.bytes": "50000"},
    "flushed": {"flush.messages": "1"},
    "flushed-small-segments": {"flush.messages": "1", "segment.bytes": "50000"},
}


@pytest.mark.timeout(60 + 10 * ROUNDS)
def test_killed_in_a_loop_under_load(tmp_path: Path) -> None:
    # Checkpoints all the time, so that kills hit them too.
    with BrokerProcess(tmp_path, {"log.flush.offset.checkpoint.interval.ms": "20"}).keep_port() as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": "0"})
        for done in admin.create_topics(
            [NewTopic(name, PARTITIONS, 1, config=of) for name, of in TOPICS.items()]
        ).values():
            done.result(10)
        loads = [
            Load(broker.bootstrap, topic, partitions=range(PARTITIONS), name=topic, pause_s=0.001)
            for topic in TOPICS
        ]
        with contextlib.ExitStack() as running:
            for load in loads:
                running.enter_context(load)
            for _ in range(ROUNDS):
                for load in loads:
                    load.until(load.ledger.count + 100)
                broker.kill()
                broker.start()
        for load in loads:
            assert load.ledger.failed == []
            assert load.ledger.count >= 100 * ROUNDS
            assert sum(check(broker.bootstrap, load.topic, [load]).values()) >= load.ledger.count
        assert "Traceback" not in broker.said()
