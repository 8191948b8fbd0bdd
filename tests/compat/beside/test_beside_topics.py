"""CreateTopics, DeleteTopics, CreatePartitions, DeleteRecords, Metadata: the life of a topic."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from millstream_harness.beside import Beside, Its
from millstream_harness.java import is_before
from millstream_kafka.protocol import (
    create_partitions,
    create_topics,
    delete_records,
    delete_topics,
    describe_configs,
    metadata,
)

pytestmark = [
    pytest.mark.soak,
    pytest.mark.once,
]

TIERED = "There is no tiered storage: its keys are not listed."
NO_TIERS = {
    "[local.retention": TIERED,
    "[remote.": TIERED,
    "[millstream.": "Our own.",
    "[max.decompressed.": "A key of Kafka 4.4.",
}
AT_ONCE = "Ours creates a topic before it answers Metadata; Kafka says UNKNOWN_TOPIC_OR_PARTITION first."
ZERO, NOBODY = UUID(int=0), UUID(int=1)


def topic(name: str, partitions: int = 1, factor: int = 1, **more: Any) -> dict[str, Any]:
    return {"name": name, "num_partitions": partitions, "replication_factor": factor, **more}


def assigned(*replicas: list[int], first: int = 0) -> list[dict[str, Any]]:
    return [{"partition_index": first + index, "broker_ids": each} for index, each in enumerate(replicas)]


def configs(**values: str | None) -> list[dict[str, Any]]:
    return [{"name": name.replace("_", "."), "value": value} for name, value in values.items()]


GOOD = {
    "plain": topic("create-{v}"),
    "many partitions": topic("create-many-{v}", 7),
    "with configuration": topic(
        "create-configured-{v}",
        2,
        configs=configs(retention_ms="1234", cleanup_policy="compact,delete", max_message_bytes="2000"),
    ),
    "without a cleanup policy": topic("create-kept-{v}", configs=configs(cleanup_policy="")),
    "with an assignment": topic("create-assigned-{v}", -1, -1, assignments=assigned([1], [1])),
}
BAD = {
    "exists": topic("there"),
    "exists, whatever else is wrong": topic("there", 0, 7),
    "empty name": topic(""),
    "dot": topic("."),
    "dots": topic(".."),
    "slash": topic("a/b"),
    "space": topic("a b"),
    "umlaut": topic("ä"),
    "longest and one": topic("n" * 250),
    "collides": topic("one_two"),
    "collides the other way": topic("three.four"),
    "internal": topic("__consumer_offsets", 3),
    "no partitions": topic("bad", 0),
    "fewer than no partitions": topic("bad", -2),
    "factor 0": topic("bad", 1, 0),
    "factor -2": topic("bad", 1, -2),
    "factor 2": topic("bad", 1, 2),
    "assignment and partitions": topic("bad", 1, -1, assignments=assigned([1])),
    "assignment and factor": topic("bad", -1, 1, assignments=assigned([1])),
    "assignment to nobody": topic("bad", -1, -1, assignments=assigned([])),
    "assignment to a stranger": topic("bad", -1, -1, assignments=assigned([9])),
    "assignment to a negative broker": topic("bad", -1, -1, assignments=assigned([-1])),
    "assignment twice to one": topic("bad", -1, -1, assignments=assigned([1, 1])),
    "assignment of two sizes": topic("bad", -1, -1, assignments=assigned([1], [1, 9])),
    "assignment with a gap": topic("bad", -1, -1, assignments=assigned([1]) + assigned([1], first=2)),
    "assignment that does not begin at 0": topic("bad", -1, -1, assignments=assigned([1], first=1)),
    "assignment of a partition twice": topic("bad", -1, -1, assignments=assigned([1]) + assigned([1])),
    "unknown key": topic("bad", configs=configs(no_such_key="1")),
    "null value": topic("bad", configs=configs(retention_ms=None)),
    "two null values": topic("bad", configs=configs(retention_ms=None, segment_bytes=None)),
    "no number": topic("bad", configs=configs(retention_ms="long")),
    "no boolean": topic("bad", configs=configs(preallocate="perhaps")),
    "below the range": topic("bad", configs=configs(retention_ms="-2")),
    "above the range": topic("bad", configs=configs(min_cleanable_dirty_ratio="1.5")),
    "above an int": topic("bad", configs=configs(segment_bytes="2147483648")),
    "not one of": topic("bad", configs=configs(compression_type="zip")),
    "not one of the list": topic("bad", configs=configs(cleanup_policy="delete,keep")),
    "segment too small": topic("bad", configs=configs(segment_index_bytes="1")),
    "lags that cross": topic("bad", configs=configs(min_compaction_lag_ms="10", max_compaction_lag_ms="5")),
}


@pytest.fixture(autouse=True, scope="module")
def there(beside: Beside) -> None:
    """Existing topics."""
    beside.create("there", partitions=3)
    beside.create("here", partitions=2)
    beside.create("one.two", "three_four")


@pytest.mark.parametrize("case", GOOD)
def test_topics_that_can_be_created(beside: Beside, case: str) -> None:
    create(beside, GOOD[case])
    names = [
        GOOD[case]["name"].replace("{v}", str(version)) for version in beside.versions(create_topics.API)
    ]
    beside.until_known(*names)
    beside.same(metadata.API, topics=[{"name": name} for name in names])


@pytest.mark.parametrize("validate_only", [False, True])
@pytest.mark.parametrize("case", BAD)
def test_topics_that_cannot_be_created(beside: Beside, case: str, validate_only: bool) -> None:
    but = {"error_message": "No log directory can be cordoned."} if case == "factor 2" else None
    asked = {"topics": [BAD[case]], "timeout_ms": 10_000, "validate_only": validate_only}
    beside.same(create_topics.API, but=but, **asked)


def create(beside: Beside, *topics: dict[str, Any], **more: Any) -> None:
    beside.same(create_topics.API, range(2, 5), topics=list(topics), timeout_ms=10_000, **more)
    beside.same(create_topics.API, range(5, 8), topics=list(topics), timeout_ms=10_000, but=NO_TIERS, **more)


def test_validation_only_creates_nothing(beside: Beside) -> None:
    create(beside, topic("valid-{v}", 3), validate_only=True)
    beside.same(metadata.API, range(4, 13), topics=[{"name": "valid-7"}], allow_auto_topic_creation=False)


def test_several_topics_in_a_request(beside: Beside) -> None:
    create(beside, topic("mixed-{v}"), topic("mixed-{v}-b", 0), topic("there"), topic("mixed-{v}-c", 2))
    create(beside, topic("twice-{v}"), topic("twice-{v}", 2), topic("once-{v}"))
    beside.same(create_topics.API, topics=[])
    beside.until_known("once-7")
    beside.same(
        metadata.API, [12], topics=[{"name": "twice-7"}, {"name": "once-7"}], allow_auto_topic_creation=False
    )


def test_topics_that_default_their_counts(beside: Beside) -> None:
    create(beside, topic("default-{v}", -1, -1))


def test_deleting_topics(beside: Beside) -> None:
    by_name = [5, *range(1, 5)]
    names = [f"gone-{number}" for number in range(8)]
    beside.create(*names)
    for version in by_name:
        beside.same(delete_topics.API, [version], topic_names=[names[version]], timeout_ms=10_000)
        beside.same(delete_topics.API, [version], topic_names=[names[version]], timeout_ms=10_000)
        beside.same(
            delete_topics.API, [version], topic_names=["no-such", "no-such", "", "a/b"], timeout_ms=10_000
        )
    one = {"name": None, "topic_id": Its("id of gone-6")}
    named = {"name": "gone-7"}
    for asked in (
        [{"name": "gone-6", "topic_id": Its("id of gone-6")}],
        [{"name": None, "topic_id": ZERO}],
        [{"name": None, "topic_id": NOBODY}],
        [{"name": None, "topic_id": NOBODY}, {"name": None, "topic_id": NOBODY}],
        [one, one],
        [named, named],
        [one, {"name": "gone-6"}],
        [{"name": "no-such"}],
        [one, {"name": "no-such"}, {"name": None, "topic_id": NOBODY}],
        [one],
        [named],
        [],
    ):
        beside.same(delete_topics.API, [6], topics=asked, timeout_ms=10_000)


@pytest.mark.parametrize(
    ("name", "count", "replicas"),
    [
        ("no-such", 2, None),
        ("", 2, None),
        ("a/b", 2, None),
        ("here", 2, None),
        ("here", 1, None),
        ("here", 0, None),
        ("here", -1, None),
        ("here", 4, [[1]]),
        ("here", 3, [[1], [1]]),
        ("here", 4, []),
        ("here", 3, [[]]),
        ("here", 3, [[9]]),
        ("here", 3, [[1, 1]]),
        ("here", 3, [[1, 9]]),
        ("here", 4, [[1], [1, 9]]),
        ("here", 2, [[1]]),
    ],
)
def test_partitions_that_cannot_be_added(
    beside: Beside, name: str, count: int, replicas: list[list[int]] | None
) -> None:
    assignments = None if replicas is None else [{"broker_ids": each} for each in replicas]
    asked = [{"name": name, "count": count, "assignments": assignments}]
    for validate_only in (True, False):
        beside.same(create_partitions.API, topics=asked, timeout_ms=10_000, validate_only=validate_only)


def test_partitions_that_can_be_added(beside: Beside) -> None:
    beside.create(*(f"grow-{version + 2}" for version in beside.versions(create_partitions.API)))
    for version in beside.versions(create_partitions.API):
        name = f"grow-{version + 2}"
        more = [{"name": name, "count": 3, "assignments": None}]
        beside.same(create_partitions.API, [version], topics=more, timeout_ms=10_000, validate_only=True)
        beside.same(create_partitions.API, [version], topics=more * 2, timeout_ms=10_000)
        beside.same(create_partitions.API, [version], topics=more, timeout_ms=10_000)
        more = [{"name": name, "count": 4, "assignments": [{"broker_ids": [1]}]}]
        beside.same(create_partitions.API, [version], topics=more, timeout_ms=10_000)
        beside.until_known(name, partitions=4)
        but = {"leader_epoch": "a partition that was added begins with a random one (docs/clusters.md)"}
        beside.same(metadata.API, [12], topics=[{"name": name}], but=but)


def test_metadata(beside: Beside) -> None:
    beside.create("described", partitions=2)
    flags = {
        "allow_auto_topic_creation": False,
        "include_cluster_authorized_operations": True,
        "include_topic_authorized_operations": True,
    }
    for names in (
        ["described"],
        ["no-such"],
        ["described", "no-such", "described"],
        ["", ".", "a/b", "n" * 250],
    ):
        topics = [{"name": name} for name in names]
        beside.same(metadata.API, range(4, 13), topics=topics, **flags)
        beside.same(metadata.API, range(4, 13), topics=topics, allow_auto_topic_creation=False)
    beside.same(metadata.API, topics=[{"name": "described"}])
    beside.same(metadata.API, range(1, 13), topics=[])
    for asked in (
        [{"name": None, "topic_id": Its("id of described")}],
        [{"name": None, "topic_id": NOBODY}],
        [{"name": "described", "topic_id": Its("id of described")}],
        [{"name": "described", "topic_id": NOBODY}],
    ):
        beside.same(metadata.API, [10, 11, 12], topics=asked, **flags)


def test_topics_that_metadata_creates(beside: Beside) -> None:
    """From v4 on, a request may forbid it; before, it creates every topic that it names."""
    beside.same(metadata.API, topics=[{"name": "auto-{v}"}], but={"topics[auto": AT_ONCE})
    asked = [{"name": "a/b"}, {"name": "one_two"}, {"name": "there"}]
    beside.same(metadata.API, topics=asked, but={"[one_two": f"{AT_ONCE} Here that it could not, and why."})
    beside.until_known(*(f"auto-{version}" for version in beside.versions(metadata.API)))
    beside.same(
        metadata.API, [12], topics=[{"name": f"auto-{version}"} for version in beside.versions(metadata.API)]
    )


@pytest.mark.skipif(is_before(4, 3), reason="Kafka before 4.3 keeps duplicates")
def test_duplicates_in_a_list(beside: Beside) -> None:
    wanted = topic("twice-{v}", configs=configs(cleanup_policy="delete,compact,delete"))
    but = {**NO_TIERS, "[cleanup.policy]": "Kafka shows the text of the request."}
    beside.same(create_topics.API, [7], topics=[wanted], timeout_ms=10_000, but=but)
    beside.until_known("twice-7")
    asked = {"resource_type": 2, "resource_name": "twice-7", "configuration_keys": ["cleanup.policy"]}
    answers = beside.same(describe_configs.API, [4], resources=[asked])
    assert answers.ours["results"][0]["configs"][0]["value"] == "delete,compact"


def test_deleting_records(beside: Beside) -> None:
    beside.create("cut", partitions=3)
    beside.create("cut-compact", cleanup_policy="compact")
    beside.create("cut-both", cleanup_policy="compact,delete")
    since_4_3 = [] if is_before(4, 3) else ["cut-kept"]  # before, an empty policy forbids it
    beside.create("cut-kept", cleanup_policy="")
    beside.create("cut-twice", cleanup_policy="compact,compact")

    def ask(name: str, *offsets: tuple[int, int]) -> None:
        partitions = [{"partition_index": index, "offset": offset} for index, offset in offsets]
        beside.same(delete_records.API, topics=[{"name": name, "partitions": partitions}], timeout_ms=10_000)

    for name in ("cut", "cut-compact", "cut-both", *since_4_3, "cut-twice", "no-such", "", "a/b"):
        ask(name, (0, 0))
        ask(name, (0, -1))
        ask(name, (0, 1))
        ask(name, (0, -2))
        ask(name, (0, 0), (1, 0), (7, 0))
    beside.same(delete_records.API, topics=[], timeout_ms=10_000)
