"""Transactions beside Apache Kafka: random steps of producers make both tell the same story.

A story (`transaction_story`) has each response, and at the end the batches that readers of each isolation level get,
the aborted transactions, the producers, the positions of groups and the records of `__transaction_state`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream_harness.in_process_broker import InProcessBroker
from millstream_harness.java import is_before
from millstream_harness.kafka import KafkaProcess
from millstream_harness.scenario import unique
from millstream_harness.transaction_story import (
    AGAIN,
    FIRST,
    GAP,
    NEXT,
    TIMEOUT_MS,
    Add,
    AddOffsets,
    Bearer,
    CommitOffsets,
    End,
    Init,
    Look,
    Mark,
    PlainCommit,
    Positions,
    Produce,
    Step,
    TransactionStory,
)
from millstream_harness.wire import Wire

pytestmark = [
    pytest.mark.soak,
    pytest.mark.once,
    pytest.mark.skipif(is_before(4), reason="Kafka 3.9 has older versions of transactions"),
]

CONFIG = {
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
    "log.retention.check.interval.ms": "86400000",
}
LONGEST_MS = 900_000
"""Kafka's default of transaction.max.timeout.ms."""
Brokers = list[InProcessBroker | KafkaProcess]


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    folder = tmp_path_factory.mktemp("transactions-beside-kafka")
    with InProcessBroker(folder / "ours", CONFIG) as ours, KafkaProcess(folder / "kafka", CONFIG) as kafka:
        yield [ours, kafka]


def play(broker: InProcessBroker | KafkaProcess, name: str, steps: list[Step]) -> list[str]:
    with Wire(broker.bootstrap) as wire:
        story = TransactionStory(wire, name)
        story.play(steps)
        story.finish()
        return story.lines


def compare(brokers: Brokers, steps: list[Step]) -> None:
    name = unique("story")
    with ThreadPoolExecutor(2) as both:
        ours, kafkas = both.map(lambda broker: play(broker, name, steps), brokers)
    differ = list(difflib.unified_diff(kafkas, ours, "Kafka", "ours", lineterm=""))
    assert not differ, "\n" + "\n".join(differ)


ids = st.sampled_from([0, 0, 0, 1])
groups = partitions = st.sampled_from([0, 0, 1])
bearers = st.builds(
    Bearer, ids, st.sampled_from([0, 0, 0, 0, 1, 2]), st.sampled_from([0, 0, 0, 0, 0, 0, -1, 1])
)


@st.composite
def its(draw: st.DrawFn, kind: type[Step], **fields: st.SearchStrategy[object]) -> Step:
    """A step for a transactional id, mostly by a producer of that id."""
    of = draw(ids)
    bearer = draw(bearers)
    if draw(st.sampled_from([True] * 9 + [False])):
        bearer = bearer._replace(of=of)
    drawn = {name: draw(strategy) for name, strategy in fields.items()}
    return kind(of=of, bearer=bearer, **drawn)  # type: ignore[call-arg,arg-type]


inits = st.one_of(
    st.builds(
        Init,
        ids,
        st.integers(0, 5),
        st.sampled_from([TIMEOUT_MS] * 6 + [LONGEST_MS, LONGEST_MS + 1, 0, -1]),
        st.none(),
    ),
    its(Init, version=st.integers(3, 5)),
)
some = st.lists(st.sampled_from([0, 0, 1, 1, 0, 1, 2]), min_size=1, max_size=2, unique=True)
adds = st.one_of(
    its(Add, version=st.integers(0, 3), partitions=some),
    its(Add, version=st.integers(4, 5), partitions=some, verify_only=st.booleans()),
)
produces = its(
    Produce,
    version=st.integers(10, 13),
    partition=partitions,
    sequence=st.sampled_from([NEXT] * 6 + [AGAIN, AGAIN, GAP, FIRST]),
    records=st.integers(1, 2),
)
positions = st.one_of(
    its(AddOffsets, version=st.integers(0, 4), group=groups),
    its(
        CommitOffsets,
        version=st.integers(2, 5),
        group=groups,
        partition=partitions,
        generation=st.sampled_from([-1, -1, -1, -1, 3]),
    ),
    st.builds(PlainCommit, groups, partitions),
    st.builds(Positions, groups, st.booleans()),
)
ends = its(End, version=st.sampled_from([5, 5, 5, 4, 4, 1]), commits=st.booleans())
marks = st.builds(Mark, bearers, st.integers(1, 2), st.booleans(), partitions)
steps = st.lists(
    st.one_of(inits, adds, produces, produces, produces, positions, ends, ends, marks, st.just(Look())),
    max_size=40,
).map(lambda drawn: [Init(0, 5), *drawn])


@settings(max_examples=300)
@given(steps=steps)
def test_producers_get_the_answers_of_kafka(brokers: Brokers, steps: list[Step]) -> None:
    compare(brokers, steps)
