"""One member of a consumer group: `consumer.py BOOTSTRAP GROUP TOPIC NAME`, until its stdin is closed.

It counts records by key and prints the counts, as a line of JSON, once it has its partitions, every quarter of a
second, and at its end. It commits counted records, even before it loses partitions, and counts only records that it
has polled: so a record is counted once, however partitions move in the group.
"""

from __future__ import annotations

import json
import select
import sys
import time
from collections import Counter
from contextlib import suppress

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

REPORT_EVERY_S = 0.25


def consume(bootstrap: str, group: str, topic: str, name: str) -> None:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "client.id": name,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "log_level": 0,
        }
    )
    seen: Counter[str] = Counter()

    def assigned(_: Consumer, partitions: list[TopicPartition]) -> None:
        print(json.dumps(seen), flush=True)

    def revoked(_: Consumer, partitions: list[TopicPartition]) -> None:
        commit(consumer, wait=True)

    consumer.subscribe([topic], on_assign=assigned, on_revoke=revoked)
    reported = time.monotonic()
    while not select.select([sys.stdin], [], [], 0)[0]:
        for message in consumer.consume(2000, timeout=0.1):
            if (error := message.error()) is None:
                seen[(message.key() or b"").decode()] += 1
            elif error.code() not in (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN):
                raise SystemExit(f"consumer {name}: {error.str()}")
        if seen and time.monotonic() - reported > REPORT_EVERY_S:
            commit(consumer, wait=False)
            print(json.dumps(seen), flush=True)
            reported = time.monotonic()
    commit(consumer, wait=True)
    consumer.close()
    print(json.dumps(seen), flush=True)


def commit(consumer: Consumer, *, wait: bool) -> None:
    with suppress(KafkaException):  # there may be nothing to commit yet
        if wait:
            consumer.commit(asynchronous=False)
        else:
            consumer.commit(asynchronous=True)


if __name__ == "__main__":
    with suppress(BrokenPipeError):  # the demo has ended
        consume(*sys.argv[1:])
    sys.stdout = None  # nothing is left to flush
