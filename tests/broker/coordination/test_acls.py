"""Access rules in the tree: Kafka's paths and JSON, changes by several brokers, and what cannot be read."""

from __future__ import annotations

import asyncio
import json
import logging
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream_broker.coordination import acl_nodes, change_notes, tree
from millstream_broker.coordination.acl_nodes import Entries
from millstream_broker.coordination.acls import NOBODY, Acls
from millstream_broker.coordination.stores import Delete
from millstream_broker.runtime import slices
from millstream_harness.in_process import running
from millstream_harness.members import until
from millstream_harness.shared_tree import SharedTree
from millstream_kafka.acl import (
    AccessControlEntry,
    AclOperation,
    PatternType,
    PermissionType,
    ResourcePattern,
    ResourceType,
)
from millstream_kafka.protocol.errors import ErrorCode

TOPIC, GROUP = ResourceType.TOPIC, ResourceType.GROUP
ORDERS = ResourcePattern(TOPIC, "orders")
ORDERS_ = ResourcePattern(TOPIC, "orders-", PatternType.PREFIXED)
READ = AccessControlEntry("User:alice", "*", AclOperation.READ, PermissionType.ALLOW)
CONFIGS = AccessControlEntry("User:bob", "10.0.0.1", AclOperation.DESCRIBE_CONFIGS, PermissionType.DENY)
NODE = (
    b'{"version":1,"acls":[{"principal":"User:alice","permissionType":"Allow","operation":"Read","host":"*"},'
    b'{"principal":"User:bob","permissionType":"Deny","operation":"DescribeConfigs","host":"10.0.0.1"}]}'
)
names = st.text(st.characters(blacklist_categories=["Cs"]), min_size=1, max_size=8)


async def acls_of(shared: SharedTree) -> Acls:
    store = shared.store()
    store.start()
    await store.connected()
    await store.ensure("/", *tree.ALWAYS)
    acls = Acls(store, lambda path: None)
    await acls.load()
    return acls


def adding(*entries: AccessControlEntry, to: Entries) -> Entries:
    return to | frozenset(entries)


def removing(*entries: AccessControlEntry, to: Entries) -> Entries:
    return to - frozenset(entries)


async def add(acls: Acls, pattern: ResourcePattern, *entries: AccessControlEntry) -> None:
    assert await acls.change({pattern: lambda stored: adding(*entries, to=stored)}) == {}


async def remove(acls: Acls, pattern: ResourcePattern, *entries: AccessControlEntry) -> None:
    assert await acls.change({pattern: lambda stored: removing(*entries, to=stored)}) == {}


async def test_nodes_and_notes_are_those_of_kafka() -> None:
    shared = SharedTree()
    acls = await acls_of(shared)
    await add(acls, ORDERS, CONFIGS, READ)
    await add(acls, ORDERS_, READ)
    node = shared.nodes.get("/kafka-acl/Topic/orders")
    assert node is not None
    assert node.data == NODE
    assert shared.nodes.get("/kafka-acl-extended/prefixed/Topic/orders-") is not None
    (literal,) = shared.nodes.names("/kafka-acl-changes")
    (extended,) = shared.nodes.names("/kafka-acl-extended-changes")
    assert (literal[:12], extended[:12]) == ("acl_changes_", "acl_changes_")
    note, other = (
        shared.nodes.get(f"/kafka-acl-changes/{literal}"),
        shared.nodes.get(f"/kafka-acl-extended-changes/{extended}"),
    )
    assert note is not None
    assert note.data == b"TOPIC:orders"
    assert other is not None
    assert json.loads(other.data) == {
        "version": 1,
        "resourceType": "TOPIC",
        "name": "orders-",
        "patternType": "PREFIXED",
    }
    await add(acls, ORDERS, READ)
    assert len(shared.nodes.names("/kafka-acl-changes")) == 1, "nothing has changed"
    await remove(acls, ORDERS, CONFIGS, READ)
    assert shared.nodes.get("/kafka-acl/Topic/orders") is None


async def test_a_change_reaches_every_broker() -> None:
    shared = SharedTree()
    one, other = await acls_of(shared), await acls_of(shared)
    changed: list[tuple[ResourcePattern, Entries]] = []
    other.on_changed = lambda pattern, entries: changed.append((pattern, entries))
    await add(one, ORDERS, READ)
    await add(one, ORDERS_, CONFIGS)
    await other.read_notes()
    expected = {ORDERS: frozenset({READ}), ORDERS_: frozenset({CONFIGS})}
    assert one.rules == other.rules == dict(changed) == expected
    assert (await acls_of(shared)).rules == expected
    await remove(one, ORDERS, READ)
    await other.read_notes()
    assert other.rules == {ORDERS_: frozenset({CONFIGS})}
    assert changed[-1] == (ORDERS, frozenset())


async def test_brokers_add_rules_to_one_pattern_at_a_time() -> None:
    shared = SharedTree()
    brokers = [await acls_of(shared) for _ in range(3)]
    entries = [READ._replace(principal=f"User:{number}") for number in range(15)]
    await asyncio.gather(*(add(brokers[at % 3], ORDERS, entry) for at, entry in enumerate(entries)))
    assert (await acls_of(shared)).rules == {ORDERS: frozenset(entries)}


async def test_a_broker_that_missed_notes_reads_everything() -> None:
    shared = SharedTree()
    one, other = await acls_of(shared), await acls_of(shared)
    loaded: list[object] = []
    other.on_loaded = loaded.append
    for entry in (READ, CONFIGS):
        await add(one, ORDERS, entry)
    store = shared.store()
    store.start()
    await store.connected()
    first = min(shared.nodes.names("/kafka-acl-changes"))
    await store.multi([Delete(f"/kafka-acl-changes/{first}")])
    await other.read_notes()
    assert other.rules == {ORDERS: frozenset({READ, CONFIGS})}
    assert len(loaded) == 1


async def test_many_changes_do_not_hold_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "SLICE_S", 0.0)
    shared = SharedTree()
    changing, reading = await acls_of(shared), await acls_of(shared)
    patterns = [ResourcePattern(TOPIC, f"t{number}") for number in range(100)]
    await changing.change({pattern: lambda stored: adding(READ, to=stored) for pattern in patterns})
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    await reading.read_notes()
    counting.cancel()
    assert len(reading.rules) == 100
    assert turns > 100


async def test_a_note_is_parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = SharedTree()
    changing, reading = await acls_of(shared), await acls_of(shared)
    parsed: list[str] = []

    def number_of(name: str) -> int:
        parsed.append(name)
        return int(name[-10:])

    for number in range(20):
        await add(changing, ResourcePattern(TOPIC, f"t{number}"), READ)
    monkeypatch.setattr(change_notes, "number_of", number_of)
    for number in range(20, 23):
        await add(changing, ResourcePattern(TOPIC, f"t{number}"), READ)
        await reading.read_notes()
    assert len(reading.rules) == 23
    assert sorted(parsed) == sorted(set(parsed))


async def test_rules_that_cannot_be_read_let_nobody_in(caplog: pytest.LogCaptureFixture) -> None:
    shared = SharedTree()
    one = await acls_of(shared)
    await add(one, ORDERS, READ)
    store = shared.store()
    store.start()
    await store.connected()
    path = "/kafka-acl/Topic/orders"
    await store.set(path, NODE.replace(b'"Deny"', b'"Maybe"'))
    await store.create("/kafka-acl-changes/acl_changes_", b"TOPIC:orders", sequence=True)
    await one.read_notes()
    assert one.rules == {ORDERS: frozenset({READ})}, "the known rules stay"
    late = await acls_of(shared)
    assert late.rules == {ORDERS: NOBODY}
    assert path in caplog.text
    assert "Maybe" in caplog.text
    await add(late, ORDERS, CONFIGS)
    assert (await acls_of(shared)).rules == {ORDERS: frozenset({CONFIGS})}


async def test_notes_that_name_nothing_are_skipped(caplog: pytest.LogCaptureFixture) -> None:
    shared = SharedTree()
    one, other = await acls_of(shared), await acls_of(shared)
    store = shared.store()
    store.start()
    await store.connected()
    for folder in ("/kafka-acl-changes", "/kafka-acl-extended-changes"):
        for data in (b"\xff", b"", b"{}", b"Door:a", b'{"resourceType":1}'):
            await store.create(f"{folder}/acl_changes_", data, sequence=True)
    await add(one, ORDERS, READ)
    await other.read_notes()
    assert other.rules == {ORDERS: frozenset({READ})}
    assert sum(record.levelno == logging.ERROR for record in caplog.records) == 10


@pytest.mark.parametrize(
    "pattern",
    [ResourcePattern(GROUP, "/" * 300), ResourcePattern(GROUP, "\x01" * 130, PatternType.PREFIXED)],
    ids=["its path", "its note"],
)
async def test_name_counts_for_what_the_store_takes_at_once(pattern: ResourcePattern) -> None:
    """ZooKeeper would close the connection, and with it fail whatever else the broker asks."""
    acls = await acls_of(SharedTree())
    acls._nodes.max_node_bytes = 1000
    failed = await acls.change({pattern: lambda stored: stored | {READ}})
    assert {name: error.code for name, error in failed.items()} == {pattern: ErrorCode.INVALID_REQUEST}
    assert "1000 are allowed" in failed[pattern].message
    assert acls.rules == {}


async def test_too_many_rules_for_a_node_are_refused_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = SharedTree()
    acls = await acls_of(shared)
    acls._nodes.max_node_bytes = 1000
    many = [READ._replace(principal=f"User:{number}") for number in range(20)]
    failed = await acls.change(
        {
            ORDERS: partial(lambda new, stored: stored | new, frozenset(many)),
            ORDERS_: lambda stored: stored | {READ},
        }
    )
    assert {pattern: error.code for pattern, error in failed.items()} == {ORDERS: ErrorCode.INVALID_REQUEST}
    assert "1000 are allowed" in failed[ORDERS].message
    assert acls.rules == (await acls_of(shared)).rules == {ORDERS_: frozenset({READ})}


@given(st.lists(names, min_size=2, max_size=2, unique=True), st.sampled_from(list(acl_nodes.ROOTS)))
def test_every_name_has_a_node_of_its_own(both: list[str], pattern_type: PatternType) -> None:
    patterns = [ResourcePattern(GROUP, name, pattern_type) for name in both]
    paths = [acl_nodes.path_of(pattern) for pattern in patterns]
    assert paths[0] != paths[1]
    for pattern, path in zip(patterns, paths, strict=True):
        folder, node = path.rsplit("/", 1)
        assert folder == f"{acl_nodes.ROOTS[pattern_type]}/Group"
        assert node not in (".", "..")
        assert not any(ord(character) < 32 for character in node)
        assert acl_nodes.pattern_of(pattern_type, GROUP, node) == pattern
        note_path, data = acl_nodes.change_of(pattern)
        assert acl_nodes.changed_in(f"{note_path}0000000001", data) == pattern


@pytest.mark.parametrize(
    ("name", "node"),
    [
        ("orders", "orders"),
        ("team/a", "%:team%2Fa"),
        ("..", "%:%2E%2E"),
        ("50%", "50%"),
        ("%:", "%:%25%3A"),
        ("*", "*"),
    ],
)
def test_names_that_no_node_may_have_are_encoded(name: str, node: str) -> None:
    assert acl_nodes.path_of(ResourcePattern(GROUP, name)) == f"/kafka-acl/Group/{node}"


async def test_a_single_broker_keeps_its_rules_when_it_restarts(tmp_path: Path) -> None:
    config = {"authorizer.class.name": "kafka.security.authorizer.AclAuthorizer", "super.users": "User:admin"}
    async with running(tmp_path, config) as broker:
        await broker.coordination.change_acls({ORDERS: lambda stored: stored | {READ}})
        assert broker.authorizer.version == 1
    async with running(tmp_path, config) as broker:
        assert broker.coordination.acls.rules == {ORDERS: frozenset({READ})}


async def test_rules_follow_a_change_on_another_broker_and_a_lost_session(tmp_path: Path) -> None:
    shared = SharedTree()
    config = {"authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer"}
    async with (
        running(tmp_path / "1", {**config, "broker.id": "1"}, shared.store) as one,
        running(tmp_path / "2", {**config, "broker.id": "2"}, shared.store) as other,
    ):
        await one.coordination.change_acls({ORDERS: lambda stored: stored | {READ}})
        await until(lambda: other.coordination.acls.rules == {ORDERS: frozenset({READ})})
        version = other.authorizer.version
        shared.stop()
        shared.start()
        await one.coordination.change_acls({ORDERS: lambda stored: stored - {READ}})
        await until(lambda: not other.coordination.acls.rules)
        assert other.authorizer.version > version
