"""Users that do not exist look like those that do, as far as a server tells before a proof."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from millstream_broker.coordination.entities import Entity
from millstream_broker.security.invented_credentials import InventedCredentials
from millstream_broker.security.scram_credentials import ScramCredential, ScramCredentials
from millstream_kafka.scram_mechanism import MIN_ITERATIONS, ScramMechanism

SHA_256, SHA_512 = ScramMechanism
SECRET = b"secret of the cluster"
NAMES = [f"user-{number}" for number in range(300)]


class Tree:
    """Coordination, of which only the configuration of users matters."""

    def __init__(self) -> None:
        self.entity_configs: dict[Entity, dict[str, str]] = {}
        self.on_entities: list[Callable[[list[Entity]], None]] = []

    def store(self, user: str, iterations: int | None, salt_bytes: int = 24) -> None:
        entity = Entity(user=user)
        if iterations is None:
            self.entity_configs.pop(entity, None)
        else:
            salt, key = b"s" * salt_bytes, bytes(SHA_256.size)
            text = ScramCredential(salt, key, key, iterations).as_text()
            self.entity_configs[entity] = {SHA_256.label: text}
        for changed in self.on_entities:
            changed([entity])


def invented(tree: Tree, mechanism: ScramMechanism = SHA_256) -> InventedCredentials:
    return InventedCredentials(mechanism, ScramCredentials(cast(Any, tree)), SECRET)


def shapes(of: InventedCredentials) -> list[tuple[int, int]]:
    credentials = [of.of(name) for name in NAMES]
    return [(len(credential.salt), credential.iterations) for credential in credentials]


def test_unknown_users_look_like_all_the_stored_ones() -> None:
    tree = Tree()
    for number in range(20):
        tree.store(f"stored-{number}", 5000 + number, salt_bytes=20 + number % 2)
    seen = Counter(shapes(invented(tree)))
    assert seen.keys() <= {(20 + number % 2, 5000 + number) for number in range(20)}
    assert len(seen) > 10, "not always the same"


def test_without_credentials_unknown_users_have_the_minimum() -> None:
    assert set(shapes(invented(Tree()))) == {(20, MIN_ITERATIONS)}


def test_credentials_of_the_other_mechanism_do_not_count() -> None:
    tree = Tree()
    tree.store("stored", 9000)
    assert set(shapes(invented(tree, SHA_512))) == {(20, MIN_ITERATIONS)}


def test_a_new_credential_changes_few_unknown_users() -> None:
    tree = Tree()
    for number in range(30):
        tree.store(f"stored-{number}", 5000 + number)
    of = invented(tree)
    before = shapes(of)
    tree.store("another", 9999)
    changed = [after for after, earlier in zip(shapes(of), before, strict=True) if after != earlier]
    assert set(changed) <= {(24, 9999)}
    assert len(changed) < len(NAMES) / 4
    tree.store("another", None)
    assert shapes(of) == before


def test_salts_differ_by_user_and_are_the_same_at_every_broker() -> None:
    tree = Tree()
    tree.store("stored", 5000)
    salts = [invented(tree).of(name).salt for name in NAMES]
    assert len(set(salts)) == len(NAMES)
    assert salts == [invented(tree).of(name).salt for name in NAMES]


@given(
    st.lists(
        st.tuples(st.sampled_from(NAMES[:8]), st.one_of(st.none(), st.integers(4096, 4200))), max_size=30
    )
)
def test_changes_end_as_if_all_was_read_at_once(changes: list[tuple[str, int | None]]) -> None:
    tree = Tree()
    of = invented(tree)
    for user, iterations in changes:
        tree.store(user, iterations)
    assert shapes(of) == shapes(invented(tree))
