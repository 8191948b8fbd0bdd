"""Groups: members that join and leave, committed positions, and all refusals."""

from __future__ import annotations

from typing import Any

import pytest

from millstream_harness.beside import Beside, Its
from millstream_kafka.protocol import (
    delete_groups,
    describe_groups,
    find_coordinator,
    heartbeat,
    join_group,
    leave_group,
    list_groups,
    offset_commit,
    offset_delete,
    offset_fetch,
    sync_group,
)

pytestmark = [
    pytest.mark.soak,
    pytest.mark.once,
]

SUBSCRIPTION = b"\0\0\0\0\0\1\0\7offsets\0\0\0\0"
ASSIGNMENT = b"\0\0\0\0\0\1\0\7offsets\0\0\0\1\0\0\0\0\0\0\0\0"
WORDS = "Kafka's text is about any request that cannot be right; ours says what is wrong."


@pytest.fixture(autouse=True, scope="module")
def there(beside: Beside) -> None:
    beside.create("offsets", partitions=3)
    beside.until(
        lambda answer: not answer["coordinators"][0]["error_code"],
        find_coordinator.API,
        4,
        coordinator_keys=["any"],
    )
    beside.until(
        lambda answer: not answer["groups"][0]["error_code"],
        offset_fetch.API,
        8,
        groups=[{"group_id": "any"}],
    )


def joining(group: str, member: Any = "", protocols: list[str] | None = None, **more: Any) -> dict[str, Any]:
    names = ["range"] if protocols is None else protocols
    return {
        "group_id": group,
        "member_id": member,
        "session_timeout_ms": 600_000,  # longer than all tests of this file take: no member is to leave the lists
        "rebalance_timeout_ms": 10_000,
        "protocol_type": "consumer",
        "protocols": [{"name": name, "metadata": SUBSCRIPTION} for name in names],
        **more,
    }


def committing(group: str, *partitions: tuple[str, int, int, str | None], **more: Any) -> dict[str, Any]:
    topics: dict[str, list[dict[str, Any]]] = {}
    for name, index, offset, text in partitions or (("offsets", 0, 7, "seven"),):
        one = {"partition_index": index, "committed_offset": offset, "committed_metadata": text}
        topics.setdefault(name, []).append(one)
    listed = [{"name": name, "partitions": each} for name, each in topics.items()]
    return {"group_id": group, "topics": listed, **more}


def fetching(beside: Beside, group: str, topics: dict[str, list[int]] | None) -> None:
    listed = (
        None
        if topics is None
        else [{"name": name, "partition_indexes": each} for name, each in topics.items()]
    )
    beside.same(offset_fetch.API, range(2 if topics is None else 1, 8), group_id=group, topics=listed)
    asked = [{"group_id": group, "topics": listed}]
    beside.same(offset_fetch.API, [8], groups=asked)


def test_coordinators(beside: Beside) -> None:
    for kind in (0, 2, 3, -1):
        more = {"but": {"error_message": WORDS}} if kind else {}
        beside.same(find_coordinator.API, range(1, 4), key="group", key_type=kind, **more)
        for keys in (["one"], ["one", "two", "one"], [""]):
            beside.same(find_coordinator.API, [4], coordinator_keys=keys, key_type=kind, **more)
        beside.same(find_coordinator.API, [4], coordinator_keys=[], key_type=kind)
    beside.same(find_coordinator.API, range(4), key="group")
    beside.same(find_coordinator.API, range(4), key="")


@pytest.mark.parametrize(
    "asked",
    [
        joining(""),
        joining("refused", session_timeout_ms=1),
        joining("refused", session_timeout_ms=-1),
        joining("refused", session_timeout_ms=2_000_000),
        joining("refused", "stranger"),
        joining("refused", protocols=[]),
        joining("refused", protocol_type=""),
        joining("refused", "stranger", session_timeout_ms=1),
        joining("refused", "stranger", group_instance_id="a"),
    ],
)
def test_joins_that_are_refused(beside: Beside, asked: dict[str, Any]) -> None:
    beside.same(join_group.API, **asked)


def test_a_member_by_every_version(beside: Beside) -> None:
    """Join, sync, commit and leave, with a group for each version of JoinGroup."""
    for version in beside.versions(join_group.API):
        group = f"joined-{version}"
        joined = beside.same(join_group.API, [version], **joining(group, protocols=["range", "roundrobin"]))
        beside.keep("member", joined, lambda answer: answer["member_id"])
        if version >= 4:
            beside.same(join_group.API, [version], **joining(group, Its("member"), ["range", "roundrobin"]))
        sync = {"group_id": group, "generation_id": 1, "member_id": Its("member")}
        if version >= 7:
            sync |= {"protocol_type": "consumer", "protocol_name": "range"}
        assignments = [{"member_id": Its("member"), "assignment": ASSIGNMENT}]
        beside.same(sync_group.API, [min(version, 5)], assignments=assignments, **sync)
        beside.same(heartbeat.API, group_id=group, generation_id=1, member_id=Its("member"))
        beside.same(describe_groups.API, groups=[group], include_authorized_operations=True)
        beside.same(
            offset_commit.API,
            **committing(group, generation_id_or_member_epoch=1, member_id=Its("member")),
        )
        beside.same(leave_group.API, [min(version, 2)], group_id=group, member_id=Its("member"))
        beside.same(leave_group.API, [min(version, 2)], group_id=group, member_id=Its("member"))
        beside.same(describe_groups.API, groups=[group])


def member_of(beside: Beside, group: str, name: str, **more: Any) -> None:
    """A stable group with one member."""
    joined = beside.same(join_group.API, [3], **joining(group, **more))
    beside.keep(name, joined, lambda answer: answer["member_id"])
    assignments = [{"member_id": Its(name), "assignment": ASSIGNMENT}]
    beside.same(
        sync_group.API, [3], group_id=group, generation_id=1, member_id=Its(name), assignments=assignments
    )


def test_what_strangers_hear(beside: Beside) -> None:
    member_of(beside, "stable", "settled")
    for group in ("stable", "no-such-group", ""):
        for member in ("stranger", "", Its("settled")):
            for generation in (0, 1, 2, -1):
                who = {"group_id": group, "generation_id": generation, "member_id": member}
                beside.same(heartbeat.API, **who)
                beside.same(sync_group.API, **who)
                beside.same(
                    offset_commit.API,
                    **committing(group, generation_id_or_member_epoch=generation, member_id=member),
                ) if group else None
        beside.same(leave_group.API, [0, 1, 2], group_id=group, member_id="stranger")
        for members in (
            [{"member_id": "stranger"}],
            [{"member_id": "stranger"}, {"member_id": ""}],
            [{"member_id": "", "group_instance_id": "nobody"}],
            [{"member_id": "stranger", "group_instance_id": "nobody"}],
            [],
        ):
            beside.same(leave_group.API, [3, 4, 5], group_id=group, members=members)
    who = {"group_id": "stable", "generation_id": 1, "member_id": Its("settled")}
    for kind, protocol in (
        ("consumer", "roundrobin"),
        ("connect", "range"),
        (None, None),
        ("consumer", None),
    ):
        beside.same(sync_group.API, [5], **who, protocol_type=kind, protocol_name=protocol)
    beside.same(join_group.API, **joining("stable", protocols=["other"]))
    beside.same(join_group.API, **joining("stable", protocol_type="connect"))
    beside.same(join_group.API, **joining("stable", "stranger"))
    for version in beside.versions(heartbeat.API):
        beside.same(heartbeat.API, [version], **who)


def test_static_members(beside: Beside) -> None:
    joined = beside.same(join_group.API, [5], **joining("static", group_instance_id="one"))
    beside.keep("first", joined, lambda answer: answer["member_id"])
    assignments = [{"member_id": Its("first"), "assignment": ASSIGNMENT}]
    who = {"group_id": "static", "generation_id": 1}
    beside.same(
        sync_group.API, [3], **who, member_id=Its("first"), group_instance_id="one", assignments=assignments
    )
    beside.same(describe_groups.API, groups=["static"])
    joined = beside.same(join_group.API, [9], **joining("static", group_instance_id="one"))
    beside.keep("second", joined, lambda answer: answer["member_id"])
    for member in ("first", "second"):
        for instance in ("one", "two", None):
            if (member, instance) == ("second", None):
                continue
            beside.same(heartbeat.API, [3, 4], **who, member_id=Its(member), group_instance_id=instance)
            beside.same(
                offset_commit.API,
                [7, 8],
                **committing(
                    "static",
                    generation_id_or_member_epoch=1,
                    member_id=Its(member),
                    group_instance_id=instance,
                ),
            )
            beside.same(sync_group.API, [3, 4, 5], **who, member_id=Its(member), group_instance_id=instance)
            beside.same(join_group.API, **joining("static", Its(member), group_instance_id="two"))
    leaving = [
        {"member_id": Its("first"), "group_instance_id": "one"},
        {"member_id": "", "group_instance_id": "one"},
        {"member_id": "", "group_instance_id": "two"},
    ]
    beside.same(leave_group.API, [3], group_id="static", members=leaving)
    beside.same(describe_groups.API, groups=["static"])


def test_positions(beside: Beside) -> None:
    for version in range(2, 10):
        group = f"positions-{version}"
        beside.same(offset_commit.API, [version], **committing(group))
        beside.same(
            offset_commit.API,
            [version],
            **committing(
                group,
                ("offsets", 1, 5, ""),
                ("offsets", 2, 0, None),
                ("offsets", 3, 5, ""),
                ("offsets", -1, 5, ""),
                ("no-such", 0, 5, ""),
                ("", 0, 5, ""),
            ),
        )
        fetching(beside, group, {"offsets": [0, 1, 2, 3, -1], "no-such": [0]})
        fetching(beside, group, {})
        fetching(beside, group, None)
    beside.same(offset_commit.API, **committing("positions-2", ("offsets", 0, 9, "m" * 5000)))
    beside.same(offset_commit.API, **committing("positions-2", ("offsets", 0, -5, "negative")))
    beside.same(offset_commit.API, group_id="positions-2", topics=[])
    for generation, member in ((1, ""), (1, "stranger"), (-1, "stranger")):
        beside.same(
            offset_commit.API,
            **committing("positions-2", generation_id_or_member_epoch=generation, member_id=member),
        )
    fetching(beside, "positions-2", None)
    fetching(beside, "no-such-group", {"offsets": [0]})
    fetching(beside, "no-such-group", None)
    fetching(beside, "", {"offsets": [0]})
    groups = [
        {"group_id": group, "topics": topics}
        for group, topics in (
            ("positions-2", None),
            ("no-such-group", None),
            ("positions-3", [{"name": "offsets", "partition_indexes": [0, 1]}]),
            ("", None),
        )
    ]
    beside.same(offset_fetch.API, [8], groups=groups, require_stable=True)
    beside.same(offset_fetch.API, [8], groups=[])


def test_positions_are_deleted(beside: Beside) -> None:
    member_of(beside, "reading", "reader")
    beside.same(offset_commit.API, **committing("read", ("offsets", 0, 1, ""), ("offsets", 1, 1, "")))
    for group in ("read", "reading", "no-such-group", ""):
        for name, index in (("offsets", 0), ("offsets", 2), ("offsets", 9), ("no-such", 0)):
            topics = [{"name": name, "partitions": [{"partition_index": index}]}]
            beside.same(offset_delete.API, group_id=group, topics=topics)
        beside.same(offset_delete.API, group_id=group, topics=[])
    fetching(beside, "read", None)


def test_groups_are_deleted(beside: Beside) -> None:
    member_of(beside, "alive", "living")
    for version in beside.versions(delete_groups.API):
        beside.same(offset_commit.API, [8], **committing(f"dying-{version}"))
        names = ["alive", f"dying-{version}", "no-such-group", ""]
        beside.same(delete_groups.API, [version], groups_names=names)
        beside.same(delete_groups.API, [version], groups_names=[f"dying-{version}"])
    beside.same(delete_groups.API, groups_names=["alive", "alive"])
    beside.same(delete_groups.API, groups_names=[])
    beside.same(describe_groups.API, groups=["no-such-group", "dying-0", "", "alive", "alive"])
    beside.same(describe_groups.API, groups=[])
    beside.same(
        describe_groups.API,
        [3, 4, 5, 6],
        groups=["no-such-group", "alive"],
        include_authorized_operations=True,
    )
    beside.same(list_groups.API)
    for states in (
        ["Stable"],
        ["stable", "EMPTY"],
        ["Dead"],
        ["PreparingRebalance"],
        ["Nonsense"],
        ["Stable", ""],
    ):
        beside.same(list_groups.API, [4, 5], states_filter=states)
    for types in (["classic"], ["Classic", "Nonsense"], ["consumer"], ["share"], ["Nonsense"], [""]):
        beside.same(list_groups.API, [5], types_filter=types)
        beside.same(list_groups.API, [5], types_filter=types, states_filter=["Stable"])
