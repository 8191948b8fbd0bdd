"""`helm test`: produces one record and consumes it, in its own topic, which it deletes afterwards.

python -m millstream_operator.tools.roundtrip HOST:PORT
"""

from __future__ import annotations

import logging
import sys
import time
import uuid

from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import KafkaError

from ..kafka.admin import KafkaAdmin
from ..kafka.records import AdminError, NewTopic

START_TIMEOUT_S = 90.0
RECORD_TIMEOUT_S = 30.0


def roundtrip(bootstrap: str) -> float:
    """The seconds that the record took. Raises AdminError, KafkaError or AssertionError."""
    admin = KafkaAdmin(bootstrap, "millstream-roundtrip")
    topic = f"millstream-roundtrip-{uuid.uuid4().hex[:12]}"
    _wait(admin)
    try:
        if refusal := admin.create_topics([NewTopic(topic, 1, 1, {})])[topic]:
            raise AdminError(str(refusal))
        begun = time.monotonic()
        producer = KafkaProducer(bootstrap_servers=bootstrap, acks="all")
        producer.send(topic, key=b"key", value=b"there and back").get(RECORD_TIMEOUT_S)
        producer.close()
        consumer = KafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest")
        consumer.assign([TopicPartition(topic, 0)])
        found = [record for batch in consumer.poll(RECORD_TIMEOUT_S * 1000).values() for record in batch]
        consumer.close()
        if [(record.key, record.value) for record in found] != [(b"key", b"there and back")]:
            raise AdminError(f"expected the one record that was produced, got {found}")
        return time.monotonic() - begun
    finally:
        admin.delete_topics([topic])
        admin.close()


def _wait(admin: KafkaAdmin) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        try:
            admin.cluster_id()
            return
        except AdminError:
            if time.monotonic() > deadline:
                raise
            time.sleep(1.0)


def main() -> None:
    logging.getLogger("kafka").setLevel(logging.CRITICAL)
    if len(sys.argv) != 2:
        sys.exit("usage: python -m millstream_operator.tools.roundtrip HOST:PORT")
    try:
        seconds = roundtrip(sys.argv[1])
    except (AdminError, KafkaError) as error:
        sys.exit(f"roundtrip: {error}")
    print(f"roundtrip: a record went through {sys.argv[1]} in {seconds * 1000:.0f} ms")


if __name__ == "__main__":
    main()
