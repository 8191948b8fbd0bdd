"""A producer in a pod, as users run one: librdkafka's defaults, a steady rate, and a line for each delivery report.

    python3 -c "$(cat paced_producer.py)" BOOTSTRAP TOPIC PARTITIONS RATE [CONFIG]

CONFIG: more of librdkafka's configuration, as JSON.

Idempotent, acks=all; RATE records a second, in turn to each partition. Each record's value is ``paced:NUMBER:``, its
numbers ascend in each partition. Standard output has the reports:

    PARTITION NUMBER OFFSET UNIX_TIME       acknowledged
    failed PARTITION NUMBER ERROR           abandoned by librdkafka
    end UNSENT                              after SIGTERM: number of records without a report

It runs where our packages are not installed, so it imports only confluent_kafka and the standard library.
"""

from __future__ import annotations

import itertools
import json
import signal
import sys
import time
from collections.abc import Callable

from confluent_kafka import KafkaError, Message, Producer

NAME = "paced"


def main(bootstrap: str, topic: str, partitions: int, rate: float, more: dict[str, str]) -> None:
    stopped = False

    def stop(*_: object) -> None:
        nonlocal stopped
        stopped = True

    signal.signal(signal.SIGTERM, stop)

    def answer(partition: int, number: int) -> Callable[[KafkaError | None, Message], None]:
        def told(error: KafkaError | None, message: Message) -> None:
            if error is None:
                say(f"{partition} {number} {message.offset()} {time.time():.4f}")
            else:
                say(f"failed {partition} {number} {error}")

        return told

    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "acks": "all", **more})
    begun = time.monotonic()
    for count in itertools.count():
        while not stopped and (early := begun + count / rate - time.monotonic()) > 0:
            producer.poll(min(early, 0.05))
        if stopped:
            break
        number, partition = divmod(count, partitions)
        value = f"{NAME}:{number}:".encode()
        producer.produce(topic, value, partition=partition, on_delivery=answer(partition, number))
    say(f"end {producer.flush(60)}")


def say(line: str) -> None:
    """Write the line at once: librdkafka writes to standard error, and Kubernetes mixes the two."""
    print(line, flush=True)


if __name__ == "__main__":
    given = json.loads(sys.argv[5]) if len(sys.argv) > 5 else {}
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4]), given)
