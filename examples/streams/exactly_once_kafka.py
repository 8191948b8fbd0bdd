"""Exactly once from topic to topic: results and positions in one transaction of Kafka.

    python exactly_once_kafka.py localhost:9092 flights carriers worker-1

Sends the carrier of each message, the text before its first space, to another topic. Start any number of processes,
each with a name of its own as the last argument, and the same one when it starts again. They may be killed at any time:
consumers of committed records get each carrier once.
"""

from __future__ import annotations

import signal
import sys
import threading

import millstream


def main(bootstrap: str, topic: str, results: str, name: str) -> None:
    with (
        millstream.connect(
            bootstrap,
            group="carriers",
            commit="manual",
            value_deserializer=millstream.Text(),
            session_timeout_s=6,
        ) as connector,
        millstream.Producer(bootstrap, transactional_id=name) as producer,
    ):
        (stream,) = connector.create_message_streams({topic: 1})[topic]
        for sign in (signal.SIGINT, signal.SIGTERM):  # the stream ends, and the group rebalances at once
            signal.signal(sign, lambda *_: threading.Thread(target=connector.close).start())
        for batch in stream.batches(100):
            try:
                with producer.transaction(stream):
                    for message in batch:
                        producer.send(results, message.value.partition(" ")[0])
            except millstream.NotOwned:  # another process has these messages now
                continue


if __name__ == "__main__":
    main(*sys.argv[1:])
