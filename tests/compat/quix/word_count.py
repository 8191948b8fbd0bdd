"""Quix Streams counts words of topic ``lines`` in topic ``counts``, until it is killed: word_count.py BOOTSTRAP FOLDER.

Its state is in the folder, and in a changelog topic from which it restores what the folder lacks.
"""

from __future__ import annotations

import sys

from quixstreams import Application, State


def number(word: str, state: State) -> str:
    count = state.get("count", 0) + 1
    state.set("count", count)
    return str(count)


def main(bootstrap: str, folder: str) -> None:
    application = Application(
        broker_address=bootstrap,
        consumer_group="words",
        auto_offset_reset="earliest",
        processing_guarantee="exactly-once",
        commit_interval=1.0,
        state_dir=folder,
        # Each start has a transactional id of its own, so what a killed one left open ends by its time-out alone. Until
        # then nobody gets the positions in it; Quix Streams waits for them for 30 seconds.
        producer_extra_config={"transaction.timeout.ms": 10_000},
        consumer_extra_config={"session.timeout.ms": 6000, "heartbeat.interval.ms": 1000},
    )
    lines = application.topic("lines", value_deserializer="string")
    counts = application.topic("counts", key_serializer="string", value_serializer="string")
    words = application.dataframe(lines).apply(str.split, expand=True)
    by_word = words.group_by(
        lambda word: word, name="word", key_serializer="string", key_deserializer="string"
    )
    by_word.apply(number, stateful=True).to_topic(counts)
    application.run()


main(*sys.argv[1:])
