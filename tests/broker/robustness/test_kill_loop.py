"""kill -9 again and again under load: every acknowledged record is there, once and in order."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from millstream_harness.broker import BrokerProcess
from millstream_harness.ledger import Load, check
from millstream_harness.scenario import unique
from millstream_harness.wire import Wire, record

pytestmark = pytest.mark.soak

ROUNDS = int(os.environ.get("MILLSTREAM_KILLS", "10"))
PARTITIONS = 2
TOPICS = {
    "plain": {},
    "small-segments": {"segment.bytes": "50000"},
    "flushed": {"flush.messages": "1"},
    "flushed-small-segments": {"flush.messages": "1", "segment.bytes": "50000"},
}


@pytest.mark.timeout(300 + 30 * ROUNDS)
def test_killed_in_a_loop_under_load(tmp_path: Path) -> None:
    # Constant checkpoints, so that kills hit them, too.
    with BrokerProcess(tmp_path, {"log.flush.offset.checkpoint.interval.ms": "20"}).keep_port() as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": "0"})
        for done in admin.create_topics(
            [NewTopic(name, PARTITIONS, 1, config=of) for name, of in TOPICS.items()]
        ).values():
            done.result(60)
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


def test_the_ledger_finds_what_is_wrong(shared_broker: BrokerProcess) -> None:
    """Lost, duplicated, misordered and foreign records: each case differs from the ledger by one record."""
    topic = unique("ledger")
    with Wire(shared_broker.bootstrap) as wire:
        wire.create(topic)
        with Load(shared_broker.bootstrap, topic, name="mine", pause_s=0.01) as load:
            load.until(50)
        assert check(shared_broker.bootstrap, topic, [load]) == {0: load.ledger.count}
        last = load.ledger.sent[0] - 1
        load.ledger.acknowledged[0][last + 1] = last + 1
        with pytest.raises(
            AssertionError, match=f"mine {last + 1} was acknowledged at {last + 1}, is nowhere"
        ):
            check(shared_broker.bootstrap, topic, [load])
        wire.produce(topic, [record(f"mine:{last}:"), record("mine:-1"), record("yours:0:")])
        with pytest.raises(AssertionError) as wrong:
            check(shared_broker.bootstrap, topic, [load])
        for said in (
            f"mine {last} is here a second time",
            "comes after",
            "nobody's record: b'yours:0:'",
            "is nowhere",
        ):
            assert said in str(wrong.value)
