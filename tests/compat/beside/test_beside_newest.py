"""The versions that Kafka's newest clients send: topics by id, tiered offsets, and descriptions page by page."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from millstream_harness.beside import Beside, Its
from millstream_kafka.batch import Record, build_batch
from millstream_kafka.protocol import (
    alter_partition_reassignments,
    api_versions,
    delete_groups,
    delete_topics,
    describe_cluster,
    describe_log_dirs,
    describe_topic_partitions,
    fetch,
    find_coordinator,
    init_producer_id,
    list_offsets,
    metadata,
    offset_commit,
    offset_fetch,
    produce,
)

pytestmark = [
    pytest.mark.soak,
    pytest.mark.once,
]

NOBODY = uuid.UUID(int=7)
NONE = uuid.UUID(int=0)
NOW = 1_700_000_000_000


def batch(*values: bytes) -> bytes:
    return build_batch([Record(None, value, NOW + place) for place, value in enumerate(values)])


@pytest.fixture(autouse=True, scope="module")
def there(beside: Beside) -> None:
    """Existing topics, the first with two records."""
    beside.create("read", "positions", "memberless", "again", "factor", "small-additions")
    beside.create("by-id", "paged-a", partitions=2)
    beside.create("paged-b", partitions=3)
    data = [{"index": 0, "records": memoryview(batch(b"a", b"b"))}]
    beside.same(
        produce.API, [12], acks=-1, timeout_ms=1000, topic_data=[{"name": "read", "partition_data": data}]
    )


def test_produce_names_topics_by_id(beside: Beside) -> None:
    for topic_id in (Its("id of by-id"), NOBODY, NONE):
        for acks in (1, -1):
            data = [
                {"index": 0, "records": memoryview(batch(b"a"))},
                {"index": 9, "records": memoryview(batch(b"b"))},
            ]
            topics = [{"topic_id": topic_id, "partition_data": data}]
            beside.same(
                produce.API,
                [13],
                acks=acks,
                timeout_ms=1000,
                topic_data=topics,
                but={"error_message": "Words."},
            )


@pytest.mark.parametrize("version", range(13, 19))
def test_fetch_names_topics_by_id(beside: Beside, version: int) -> None:
    for topic_id in (Its("id of read"), NOBODY, NONE):
        partitions = [{"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1000}]
        beside.same(
            fetch.API,
            [version],
            max_wait_ms=1,
            min_bytes=1,
            topics=[{"topic_id": topic_id, "partitions": partitions}],
        )


@pytest.mark.parametrize("timestamp", [-1, -2, -3, -4, -5, -6, -7, -(2**63)])
def test_offsets_of_tiered_storage(beside: Beside, timestamp: int) -> None:
    """A version older than its timestamp gets UNSUPPORTED_VERSION by partition."""
    asked = [{"partition_index": 0, "timestamp": timestamp}]
    answers = beside.same(
        list_offsets.API,
        replica_id=-1,
        timeout_ms=1000,
        topics=[{"name": "read", "partitions": asked}],
    )
    found = answers.ours["topics"][0]["partitions"][0]
    is_served = timestamp >= (-6 if max(beside.versions(list_offsets.API)) >= 11 else -5)
    assert found["error_code"] == (0 if is_served else 35)


def commit(topic: dict[str, Any], group: str = "by-id-{v}", **more: Any) -> dict[str, Any]:
    part = {
        "partition_index": 0,
        "committed_offset": 5,
        "committed_leader_epoch": -1,
        "committed_metadata": "m",
    }
    return {
        "group_id": group,
        "topics": [{**topic, "partitions": [part, {**part, "partition_index": 9}]}],
        **more,
    }


def coordinated(beside: Beside, group: str) -> None:
    beside.until(
        lambda answer: not answer["coordinators"][0]["error_code"],
        find_coordinator.API,
        4,
        key_type=0,
        coordinator_keys=[group],
    )
    beside.until(
        lambda answer: answer["groups"][0]["error_code"] not in (14, 15, 16),
        offset_fetch.API,
        8,
        groups=[{"group_id": group, "topics": None}],
    )


def test_positions_name_topics_by_id(beside: Beside) -> None:
    coordinated(beside, "by-id-10")
    beside.same(offset_commit.API, [8, 9], **commit({"name": "positions"}))
    for topic_id in (Its("id of positions"), NOBODY, NONE):
        beside.same(offset_commit.API, [10], **commit({"topic_id": topic_id}))
        group = {
            "group_id": "by-id-{v}",
            "topics": [{"topic_id": topic_id, "partition_indexes": [0, 1, 9]}],
        }
        beside.same(offset_fetch.API, [10], groups=[group])
    beside.same(offset_fetch.API, [8, 9, 10], groups=[{"group_id": "by-id-{v}", "topics": None}])
    beside.same(offset_fetch.API, [8, 9, 10], groups=[{"group_id": "no-such-group", "topics": None}])
    for member_id, epoch in (("m", 3), (None, 3), ("", -1), ("m", -1)):
        group = {"group_id": "by-id-{v}", "member_id": member_id, "member_epoch": epoch, "topics": None}
        beside.same(offset_fetch.API, [9, 10], groups=[group])
        group["group_id"] = "no-such-group"
        beside.same(offset_fetch.API, [9, 10], groups=[group])


def test_a_commit_of_a_member_of_no_group(beside: Beside) -> None:
    """GROUP_ID_NOT_FOUND from v9 on, ILLEGAL_GENERATION before."""
    coordinated(beside, "memberless-8")
    more = {"group": "memberless-{v}", "member_id": "m", "generation_id_or_member_epoch": 3}
    before = beside.same(offset_commit.API, [7, 8], **commit({"name": "memberless"}, **more))
    beside.same(offset_commit.API, [9], **commit({"name": "memberless"}, **more))
    after = beside.same(offset_commit.API, [10], **commit({"topic_id": Its("id of memberless")}, **more))
    codes = [answer.ours["topics"][0]["partitions"][0]["error_code"] for answer in (before, after)]
    assert codes == [22, 69]


def test_a_recreated_topic_keeps_no_state_of_the_old_id(beside: Beside) -> None:
    """Positions, records and descriptions belong to the id."""
    coordinated(beside, "old-10")
    old = {"topic_id": Its("id of again")}
    beside.same(offset_commit.API, [10], **commit(old, "old-{v}"))
    for peer in beside.peers:
        peer.kept["old id"] = peer.kept["id of again"]
    beside.same(delete_topics.API, [5], topic_names=["again"], timeout_ms=10_000)
    beside.until(
        lambda answer: answer["topics"][0]["error_code"] == 3,
        metadata.API,
        12,
        topics=[{"name": "again"}],
        allow_auto_topic_creation=False,
    )
    beside.create("again")
    for topic_id in (Its("old id"), Its("id of again")):
        beside.same(offset_commit.API, [10], **commit({"topic_id": topic_id}, "new-{v}"))
        data = [{"index": 0, "records": memoryview(batch(b"a"))}]
        topics = [{"topic_id": topic_id, "partition_data": data}]
        beside.same(produce.API, [13], acks=1, timeout_ms=1000, topic_data=topics)
    asked = [
        {"topic_id": topic_id, "partition_indexes": [0]} for topic_id in (Its("old id"), Its("id of again"))
    ]
    for group in ("old-{v}", "new-{v}"):
        beside.same(offset_fetch.API, [10], groups=[{"group_id": group, "topics": asked}])


LIMITS = [0, 1, 2, 3, 4, 5, 6, 100, -1]


@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize(
    "cursor", [None, ("paged-b", 0), ("paged-b", 2), ("paged-b", 9), ("paged-aa", 1), ("z", 0), ("", 0)]
)
def test_topics_are_described_page_by_page(
    beside: Beside, limit: int, cursor: tuple[str, int] | None
) -> None:
    names = ["paged-b", "paged-a", "no such topic", "no-such-topic", "paged-a"]
    at = None if cursor is None else {"topic_name": cursor[0], "partition_index": cursor[1]}
    beside.same(
        describe_topic_partitions.API,
        topics=[{"name": name} for name in names],
        response_partition_limit=limit,
        **({} if at is None else {"cursor": at}),
    )


def test_a_page_before_the_first_partition_is_refused(beside: Beside) -> None:
    for topics in ([{"name": "any"}, {"name": "other"}], []):
        cursor = {"topic_name": "any", "partition_index": -1}
        beside.same(describe_topic_partitions.API, topics=topics, cursor=cursor)


def test_a_factor_that_may_not_change(beside: Beside) -> None:
    for replicas in ([1], None, [], [1, 1], [1, 2]):
        for allowed in (True, False):
            beside.same(
                alter_partition_reassignments.API,
                [0, 1],
                timeout_ms=10_000,
                allow_replication_factor_change=allowed,
                topics=[{"name": "factor", "partitions": [{"partition_index": 0, "replicas": replicas}]}],
            )


def test_small_additions(beside: Beside) -> None:
    """Versions that add a field which a broker of this kind leaves at its default."""
    for fenced in (False, True):
        beside.same(describe_cluster.API, include_fenced_brokers=fenced)
    names = [{"name": "small-additions"}, {"name": "none"}]
    beside.same(metadata.API, range(4, 14), topics=names, allow_auto_topic_creation=False)
    beside.same(describe_log_dirs.API, topics=[{"topic": "small-additions", "partitions": [0]}])
    asked = {"transactional_id": None, "transaction_timeout_ms": 1000}
    beside.until(lambda answer: not answer["error_code"], init_producer_id.API, 4, **asked)
    beside.same(init_producer_id.API, **asked)
    coordinated(beside, "small-additions")
    beside.same(find_coordinator.API, [4, 5, 6], key_type=0, coordinator_keys=["small-additions", "smaller"])
    beside.same(delete_groups.API, groups_names=["no-such-group", ""])


@pytest.mark.parametrize(
    ("cluster_id", "node_id"),
    [(None, -1), (Its("cluster"), 1), (Its("cluster"), 2), ("other", 1), (None, 1), ("other", -1), ("", 1)],
)
def test_a_client_that_expects_another_node(beside: Beside, cluster_id: Any, node_id: int) -> None:
    """Only Kafka 4.4 has version 5, so that Kafka 4.3 is asked nothing new here (`make compat-matrix`)."""
    answers = beside.ask(describe_cluster.API, [1])[0]
    beside.keep("cluster", answers, lambda answer: answer["cluster_id"])
    for version in [each for each in beside.versions(api_versions.API) if each >= 3]:
        beside.same(
            api_versions.API,
            [version],
            client_software_name="test",
            client_software_version="1",
            cluster_id=cluster_id,
            node_id=node_id,
            but={"api_keys": "Not all are here.", "features": "None are here."}
            if version < 5 or (cluster_id, node_id) in ((None, -1), (Its("cluster"), 1))
            else None,
        )
