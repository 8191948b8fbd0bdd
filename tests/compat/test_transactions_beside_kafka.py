"""Transactions beside Apache Kafka: random steps of producers make both tell the same story.

A story (`transaction_story`) has each response, and at the end the batches that readers of each isolation level get,
the aborted transactions, the producers, the positions of groups and the records of `__transaction_state`.
"""

from __future__ import annotations

import contextlib
import difflib
import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream_broker.replication.transactional_appends import ADDS_SINCE
from millstream_harness.in_process_broker import InProcessBroker
from millstream_harness.java import is_before
from millstream_harness.kafka import KafkaProcess
from millstream_harness.scenario import unique
from millstream_harness.story_members import FORMER, GHOST, INSTANCE, NOBODY, OWN, Join, Leave
from millstream_harness.story_steps import (
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
    Raise,
    Step,
    TimeOuts,
)
from millstream_harness.transaction_story import TransactionStory
from millstream_harness.wire import Wire

pytestmark = [
    pytest.mark.soak,
    pytest.mark.once,
    pytest.mark.timeout(900),
    pytest.mark.skipif(is_before(4, 3), reason="the stories are those of Kafka 4.3"),
]

CONFIG = {
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
    "log.retention.check.interval.ms": "86400000",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
}
LONGEST_MS = 900_000
"""Kafka's default of transaction.max.timeout.ms."""
Brokers = list[InProcessBroker | KafkaProcess]


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    folder = tmp_path_factory.mktemp("transactions-beside-kafka")
    with InProcessBroker(folder / "ours", CONFIG) as ours, KafkaProcess(folder / "kafka", CONFIG) as kafka:
        yield [ours, kafka]


def play(broker: InProcessBroker | KafkaProcess, name: str, steps: list[Step], ids: int) -> list[str]:
    with Wire(broker.bootstrap) as wire:
        story = TransactionStory(wire, name, ids=ids, partitions=ids)
        story.play(steps)
        story.finish()
        return story.lines


def compare(brokers: Brokers, steps: list[Step], ids: int = 2) -> None:
    name = unique("story")
    with ThreadPoolExecutor(2) as both:
        ours, kafkas = both.map(lambda broker: play(broker, name, steps, ids), brokers)
    differ = list(difflib.unified_diff(kafkas, ours, "Kafka", "ours", lineterm=""))
    assert not differ, "\n" + "\n".join(differ)


ids = st.sampled_from([0, 0, 0, 1])
groups = partitions = st.sampled_from([0, 0, 1])
bearers = st.builds(
    Bearer, ids, st.sampled_from([0, 0, 0, 0, 1, 2]), st.sampled_from([0, 0, 0, 0, 0, 0, -1, 1])
)


def without_gaps(drawn: list[Step]) -> list[Step]:
    """Without sequences that are left out, if a story has both protocols of transactions.

    In Kafka, a refused request leaves its protocol to the producer's next transaction, which decides whether that must
    begin with sequence 0. In ours, each transaction is judged by its own requests.
    """
    if len({each.version < ADDS_SINCE for each in drawn if isinstance(each, Produce)}) < 2:
        return drawn
    return [
        each._replace(sequence=NEXT) if isinstance(each, Produce) and each.sequence == GAP else each
        for each in drawn
    ]


@st.composite
def its(draw: st.DrawFn, /, kind: type[Step], **fields: st.SearchStrategy[object]) -> Step:
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
        generation=st.sampled_from([-1, -1, -1, 1, 2, 3]),
        member=st.sampled_from([NOBODY, NOBODY, OWN, OWN, FORMER, GHOST]),
        instance=st.sampled_from([None, None, None, INSTANCE, GHOST]),
    ),
    st.builds(Join, groups, *[st.booleans()] * 3),
    st.builds(Leave, groups),
    st.builds(PlainCommit, groups, partitions),
    st.builds(Positions, groups, st.booleans()),
)
ends = its(End, version=st.sampled_from([5, 5, 5, 4, 4, 1]), commits=st.booleans())
marks = st.builds(Mark, bearers, st.integers(1, 2), st.booleans(), partitions)
steps = st.lists(
    st.one_of(inits, adds, produces, produces, produces, positions, ends, ends, marks, st.just(Look())),
    max_size=40,
).map(lambda drawn: [Init(0, 5), *without_gaps(drawn)])


@settings(max_examples=200)
@given(steps=steps)
def test_producers_get_the_answers_of_kafka(brokers: Brokers, steps: list[Step]) -> None:
    compare(brokers, steps)


SHORT_MS = 10_000
"""Long enough for the requests before the wait, on a busy machine."""
AFTERWARDS: dict[str, Callable[[int], Step]] = {
    "abort": lambda of: End(of, Bearer(of), 5, commits=False),
    "commit": lambda of: End(of, Bearer(of), 5, commits=True),
    "abort v4": lambda of: End(of, Bearer(of), 4, commits=False),
    "commit v4": lambda of: End(of, Bearer(of), 4, commits=True),
    "commit of the next": lambda of: End(of, Bearer(of, shift=1), 5, commits=True),
    "add": lambda of: Add(of, Bearer(of), 3, [of]),
    "add of the next": lambda of: Add(of, Bearer(of, shift=1), 3, [of]),
    "offsets": lambda of: AddOffsets(of, Bearer(of), 4, 0),
    "produce": lambda of: Produce(of, Bearer(of), 12, of),
    "produce v11": lambda of: Produce(of, Bearer(of), 11, of),
    "produce of the next": lambda of: Produce(of, Bearer(of, shift=1), 13, of, FIRST),
    "positions": lambda of: CommitOffsets(of, Bearer(of), 5, 0, 0),
    "positions v3": lambda of: CommitOffsets(of, Bearer(of), 3, 0, 0),
    "go on": lambda of: Init(of, 5, bearer=Bearer(of)),
    "go on as the next": lambda of: Init(of, 5, bearer=Bearer(of, shift=1)),
    "start": lambda of: Init(of, 5),
}


@pytest.mark.parametrize("first", ["abort", "commit", "abort v4", "add", "produce", "go on"])
def test_producers_get_the_answers_of_kafka_after_a_time_out(brokers: Brokers, first: str) -> None:
    """After the first request, each of the others, with a transactional id of its own."""
    seconds = list(AFTERWARDS.values())
    steps: list[Step] = []
    for of in range(len(seconds)):
        steps += [
            Init(of, 5, SHORT_MS),
            Produce(of, Bearer(of), 12, of),
            CommitOffsets(of, Bearer(of), 5, 0, 0),
        ]
    steps.append(TimeOuts())
    for of, second in enumerate(seconds):
        steps += [AFTERWARDS[first](of), second(of)]
    compare(brokers, steps, len(seconds))


LAST_EPOCH = 32_766
"""No producer gets a higher one: then the transactional id goes on with another producer id."""
RAISED = Raise(0, LAST_EPOCH - 2)
STARTS, CONTINUES = Init(0, 5), Init(0, 5, bearer=Bearer(0))
WRITES = Produce(0, Bearer(0), 12, 0)
COMMITS, COMMITS_V4 = End(0, Bearer(0), 5, commits=True), End(0, Bearer(0), 4, commits=True)
ENDS_OF_A_PRODUCER_ID: dict[str, list[Step]] = {
    "new producers": [STARTS] * 4,
    "the same producer": [CONTINUES] * 3 + [Init(0, 5, bearer=Bearer(0, back=1))],
    "commits": [WRITES, COMMITS] * 4 + [End(0, Bearer(0, back=1), 5, commits=True)],
    "commits of older clients": [STARTS, STARTS, *[Add(0, Bearer(0), 3, [0]), COMMITS_V4] * 2, STARTS],
    "a commit and its retry": [
        STARTS,
        STARTS,
        WRITES,
        COMMITS,
        End(0, Bearer(0, back=1), 5, commits=True),
        End(0, Bearer(0, back=1), 5, commits=False),
        WRITES,
        COMMITS,
    ],
    "a new producer ends the transaction": [
        STARTS,
        STARTS,
        WRITES,
        STARTS,
        STARTS,
        STARTS,
        WRITES,
        COMMITS,
    ],
    "the producer ends its transaction": [STARTS, STARTS, WRITES, CONTINUES, STARTS],
}


def test_a_producer_id_without_epochs_is_followed_by_another_as_in_kafka(brokers: Brokers) -> None:
    """The epochs of all are raised at once: that takes 32,764 requests each."""
    names = {kind: unique("exhausted") for kind in ENDS_OF_A_PRODUCER_ID}
    with contextlib.ExitStack() as wires, ThreadPoolExecutor(2 * len(names)) as at_once:
        told = {
            kind: [
                TransactionStory(wires.enter_context(Wire(broker.bootstrap)), name, ids=1, partitions=1)
                for broker in brokers
            ]
            for kind, name in names.items()
        }
        list(at_once.map(lambda story: story.play([RAISED]), itertools.chain(*told.values())))
        for kind, (ours, kafkas) in told.items():
            for story in (ours, kafkas):
                story.pass_over_transactions()
                story.play([Look(), *ENDS_OF_A_PRODUCER_ID[kind], Look()])
                story.finish()
            differ = list(difflib.unified_diff(kafkas.lines, ours.lines, "Kafka", "ours", lineterm=""))
            assert not differ, "\n".join([kind, *differ])
