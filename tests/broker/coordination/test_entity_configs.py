"""Configuration of users, clients and addresses: Kafka's paths and JSON, kept by every broker."""

from __future__ import annotations

import json
import logging
import stat
from collections.abc import Mapping
from pathlib import Path

import pytest

from millstream_broker.coordination import CoordinationError, tree
from millstream_broker.coordination.configs import Configs
from millstream_broker.coordination.entities import DEFAULT, MAX_PATH_BYTES, Entity
from millstream_broker.coordination.stores import Create, Delete, Set
from millstream_harness.in_process import running
from millstream_harness.shared_tree import SharedTree
from millstream_kafka.protocol.errors import ApiError, ErrorCode

RATE = {"producer_byte_rate": "1024"}
PATHS = [
    (Entity(user="alice"), "users/alice"),
    (Entity(user=DEFAULT), "users/<default>"),
    (Entity(user="<default>"), "users/%3Cdefault%3E"),
    (Entity(user="CN=a b*c+d~e,O=ü/x"), "users/CN%3Da%20b%2Ac%2Bd%7Ee%2CO%3D%C3%BC%2Fx"),
    (Entity(user=".."), "users/%2E%2E"),
    (Entity(user="a", client_id="b/c"), "users/a/clients/b%2Fc"),
    (Entity(user=DEFAULT, client_id=DEFAULT), "users/<default>/clients/<default>"),
    (Entity(client_id="c"), "clients/c"),
    (Entity(client_id=DEFAULT), "clients/<default>"),
    (Entity(ip="10.0.0.1"), "ips/10.0.0.1"),
    (Entity(ip="fd00::1"), "ips/fd00::1"),
    (Entity(ip=DEFAULT), "ips/<default>"),
]


@pytest.mark.parametrize(("entity", "path"), PATHS)
def test_paths_are_those_of_kafka(entity: Entity, path: str) -> None:
    assert entity.path == path
    assert Entity.from_path(path) == entity


@pytest.mark.parametrize(
    "path",
    [
        "users/a b",
        "users/%zz",
        "users/%ff",
        "users/",
        "users/a/clients",
        "users/a/clients/b/c",
        "topics/t",
        "ips",
    ],
)
def test_other_paths_name_no_entity(path: str) -> None:
    assert Entity.from_path(path) is None


@pytest.mark.parametrize("name", ["", "ü" * MAX_PATH_BYTES])
def test_impossible_names_are_refused(name: str) -> None:
    with pytest.raises(ApiError) as refused:
        _ = Entity(user=name).path
    assert refused.value.code is ErrorCode.INVALID_REQUEST


async def configs_of(shared: SharedTree) -> tuple[Configs, list[set[str]]]:
    store = shared.store()
    store.start()
    await store.connected()
    await store.ensure("/", *tree.ALWAYS)
    changes: list[set[str]] = []
    configs = Configs(store, changes.append)
    await configs.load(lambda path: None)
    return configs, changes


async def put(configs: Configs, entity: Entity, config: Mapping[str, str]) -> None:
    async def changed(stored: Mapping[str, str]) -> Mapping[str, str]:
        return config

    await configs.change(entity.path, changed)


async def test_a_change_reaches_every_broker() -> None:
    shared = SharedTree()
    (one, _), (other, changes) = await configs_of(shared), await configs_of(shared)
    for entity, _ in PATHS:
        await put(one, entity, RATE)
    await other.read_notes()
    assert one.entities == other.entities == {entity: RATE for entity, _ in PATHS}
    assert {path for _, path in PATHS} in changes
    late, _ = await configs_of(shared)
    assert late.entities == other.entities
    for entity, _ in PATHS:
        await put(one, entity, {})
    await other.read_notes()
    assert one.entities == other.entities == {}


async def test_nodes_and_notes_are_those_of_kafka() -> None:
    shared = SharedTree()
    one, _ = await configs_of(shared)
    await put(one, Entity(user="a", client_id="c"), RATE)
    node = shared.nodes.get("/config/users/a/clients/c")
    assert node is not None
    assert json.loads(node.data) == {"version": 1, "config": RATE}
    (name,) = shared.nodes.names(tree.CONFIG_CHANGES)
    note = shared.nodes.get(f"{tree.CONFIG_CHANGES}/{name}")
    assert note is not None
    assert json.loads(note.data) == {"version": 2, "entity_path": "users/a/clients/c"}
    await put(one, Entity(user="a", client_id="c"), RATE)
    assert len(shared.nodes.names(tree.CONFIG_CHANGES)) == 1, "nothing has changed"


async def test_what_is_deleted_leaves_no_node() -> None:
    shared = SharedTree()
    configs, _ = await configs_of(shared)
    others, _ = await configs_of(shared)
    user, client, other = (Entity("alice"), Entity("alice", "c"), Entity("alice", "d"))
    before = set(shared.nodes.stored)

    def left() -> list[str]:
        return sorted(
            path for path in set(shared.nodes.stored) - before if not path.startswith(tree.CONFIG_CHANGES)
        )

    for entity in (user, client, other, Entity(client_id="c"), Entity(ip="10.0.0.1")):
        await put(configs, entity, RATE)
    for entity in (user, other, Entity(client_id="c"), Entity(ip="10.0.0.1")):
        await put(configs, entity, {})
    assert left() == [f"/config/users/alice{below}" for below in ("", "/clients", "/clients/c")]
    await others.read_notes()
    assert others.entities == {client: RATE}
    await put(configs, client, {})
    assert left() == []
    await others.read_notes()
    assert not others.entities
    await put(others, client, RATE)
    await put(others, user, RATE)
    await put(others, client, {})
    assert left() == ["/config/users/alice"]
    await put(others, user, {})
    assert left() == []


async def test_an_entity_whose_node_and_notes_are_gone_is_forgotten() -> None:
    shared = SharedTree()
    (one, _), (other, changes) = await configs_of(shared), await configs_of(shared)
    await put(one, Entity(user="a"), RATE)
    await other.read_notes()
    await put(one, Entity(user="b"), RATE)
    shared.commit([Delete("/config/users/a")], 0)
    for name in sorted(shared.nodes.names(tree.CONFIG_CHANGES))[:2]:
        shared.commit([Delete(f"{tree.CONFIG_CHANGES}/{name}")], 0)
    await put(one, Entity(user="c"), RATE)
    await other.read_notes()
    assert other.entities == {Entity(user="b"): RATE, Entity(user="c"): RATE}
    assert "users/a" in changes[-1]


async def test_a_change_starts_from_what_is_stored() -> None:
    """Quotas and credentials of a user are in one node, and two brokers change them at a time."""
    shared = SharedTree()
    (one, _), (other, _) = await configs_of(shared), await configs_of(shared)
    raced = False

    async def changed(stored: Mapping[str, str]) -> Mapping[str, str]:
        nonlocal raced
        if not raced:
            raced = True
            await put(other, Entity(user="a"), {"SCRAM-SHA-256": "secret"})
        return {**stored, **RATE}

    await one.change("users/a", changed)
    assert one.entities[Entity(user="a")] == {"SCRAM-SHA-256": "secret", **RATE}


async def test_unreadable_configuration_stays_out_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    shared = SharedTree()
    one, _ = await configs_of(shared)
    await put(one, Entity(user="a"), {"SCRAM-SHA-256": "salt=1"})
    for data in (b'{"config": {"SCRAM-SHA-256": "hidden', b'{"config": "hidden"}', b'"hidden"'):
        shared.commit([Set("/config/users/a", data)], 0)
        await one.load(lambda path: None)
    assert one.entities == {Entity(user="a"): {"SCRAM-SHA-256": "salt=1"}}, (
        "the last readable one stays in use"
    )
    assert "/config/users/a has no configuration" in caplog.text
    assert "hidden" not in caplog.text


async def test_a_name_that_kafka_would_encode_otherwise_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    shared = SharedTree()
    one, _ = await configs_of(shared)
    shared.commit([Create("/config/users/a b", tree.config_json(RATE))], 0)
    await one.load(lambda path: None)
    assert one.entities == {}
    assert "/config/users/a b: ignored" in caplog.text


async def test_configuration_is_limited() -> None:
    shared = SharedTree()
    one, _ = await configs_of(shared)
    with pytest.raises(CoordinationError, match="/config/users/a would have") as refused:
        await put(one, Entity(user="a"), {"key": "x" * one._nodes.max_node_bytes})
    assert refused.value.code is ErrorCode.INVALID_CONFIG


async def test_a_standalone_broker_has_it_again_after_a_restart(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    alice, changes = Entity(user="alice"), []
    async with running(tmp_path) as broker:
        broker.coordination.on_entities.append(changes.append)
        await broker.coordination.change_entity(alice, lambda stored: {**stored, "SCRAM-SHA-256": "hidden"})
        await broker.coordination.change_entity(alice, lambda stored: {**stored, **RATE})
        assert changes[0] == {alice}
        journal = tmp_path / "coordination.journal"
        assert stat.S_IMODE(journal.stat().st_mode) == 0o600
    journal.chmod(0o644)
    async with running(tmp_path) as broker:
        assert broker.coordination.entity_configs == {alice: {"SCRAM-SHA-256": "hidden", **RATE}}
        assert stat.S_IMODE(journal.stat().st_mode) == 0o600
    assert "hidden" not in caplog.text
