"""Access rules beside a naive model, which goes through all of them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from millstream_broker.security.acl.rules import Decision, Rules
from millstream_kafka.acl import (
    AccessControlEntry,
    AclOperation,
    PatternType,
    PermissionType,
    ResourcePattern,
    ResourceType,
)

TOPIC, GROUP = ResourceType.TOPIC, ResourceType.GROUP
LITERAL, PREFIXED = PatternType.LITERAL, PatternType.PREFIXED
READ, WRITE, DESCRIBE, ALL = (
    AclOperation.READ,
    AclOperation.WRITE,
    AclOperation.DESCRIBE,
    AclOperation.ALL,
)
ALLOW, DENY = PermissionType.ALLOW, PermissionType.DENY
ALICE, BOB = "User:alice", "User:bob"
HOME, AWAY = "10.0.0.1", "10.0.0.2"

names = st.text("ab*", min_size=1, max_size=3)
operations = st.sampled_from(
    [READ, WRITE, DESCRIBE, AclOperation.DESCRIBE_CONFIGS, AclOperation.ALTER_CONFIGS, AclOperation.CREATE]
)
patterns = st.builds(
    ResourcePattern, st.sampled_from([TOPIC, GROUP]), names, st.sampled_from([LITERAL, PREFIXED])
)
entries = st.builds(
    AccessControlEntry,
    st.sampled_from([ALICE, BOB, "User:*"]),
    st.sampled_from([HOME, AWAY, "*"]),
    st.one_of(operations, st.just(ALL)),
    st.sampled_from([ALLOW, DENY]),
)
changes = st.lists(st.tuples(patterns, st.sets(entries, max_size=3)), max_size=12)

IMPLIES = {
    DESCRIBE: {DESCRIBE, READ, WRITE, AclOperation.DELETE, AclOperation.ALTER},
    AclOperation.DESCRIBE_CONFIGS: {AclOperation.DESCRIBE_CONFIGS, AclOperation.ALTER_CONFIGS},
}


def rules_of(*given: tuple[ResourcePattern, AccessControlEntry]) -> Rules:
    rules = Rules()
    by_pattern: dict[ResourcePattern, set[AccessControlEntry]] = {}
    for pattern, entry in given:
        by_pattern.setdefault(pattern, set()).add(entry)
    for pattern, found in by_pattern.items():
        rules.replace(pattern, found)
    return rules


def applied(
    changed: list[tuple[ResourcePattern, set[AccessControlEntry]]],
) -> tuple[Rules, list[tuple[ResourcePattern, AccessControlEntry]]]:
    """The rules after some changes, and the same as a list."""
    rules, last = Rules(), dict[ResourcePattern, set[AccessControlEntry]]()
    for pattern, found in changed:
        rules.replace(pattern, found)
        last[pattern] = found
    return rules, [(pattern, entry) for pattern, found in last.items() for entry in found]


def concerns(entry: AccessControlEntry, principal: str, host: str) -> bool:
    return entry.principal in (principal, "User:*") and entry.host in (host, "*")


def naive(
    rules: list[tuple[ResourcePattern, AccessControlEntry]], operation: AclOperation, name: str
) -> Decision:
    def matches(pattern: ResourcePattern) -> bool:
        if pattern.pattern_type is PREFIXED:
            return name.startswith(pattern.name)
        return pattern.name in (name, "*")

    of_name = [entry for pattern, entry in rules if pattern.resource_type is TOPIC and matches(pattern)]
    mine = [entry for entry in of_name if concerns(entry, ALICE, HOME)]
    if any(entry.permission_type is DENY and entry.operation in (operation, ALL) for entry in mine):
        return Decision.DENIED
    allowing = {ALL, operation} | IMPLIES.get(operation, set())
    if any(entry.permission_type is ALLOW and entry.operation in allowing for entry in mine):
        return Decision.ALLOWED
    return Decision.DENIED if of_name else Decision.NO_ACL


@given(changes, operations, names)
def test_decisions_are_those_of_the_model(
    changed: list[tuple[ResourcePattern, set[AccessControlEntry]]], operation: AclOperation, name: str
) -> None:
    rules, as_list = applied(changed)
    assert rules.decide(ALICE, HOME, operation, TOPIC, name) is naive(as_list, operation, name)
    assert {(pattern, entry) for pattern, found in rules for entry in found} == set(as_list)


@given(changes)
def test_some_resource_is_that_of_the_model(
    changed: list[tuple[ResourcePattern, set[AccessControlEntry]]],
) -> None:
    """Kafka's rule: an allowed pattern counts unless a denied prefix, or the same literal, contains it."""
    rules, as_list = applied(changed)
    mine = [
        (pattern, entry.permission_type)
        for pattern, entry in as_list
        if pattern.resource_type is TOPIC and concerns(entry, ALICE, HOME) and entry.operation in (WRITE, ALL)
    ]
    allowed = {pattern for pattern, permission in mine if permission is ALLOW}
    denied = {pattern for pattern, permission in mine if permission is DENY}
    everything = ResourcePattern(TOPIC, "*", LITERAL)
    expected = everything not in denied and (
        everything in allowed
        or any(
            pattern not in denied
            and not any(
                ResourcePattern(TOPIC, pattern.name[:length], PREFIXED) in denied
                for length in range(1, len(pattern.name) + 1)
            )
            for pattern in allowed
        )
    )
    assert rules.allows_some(ALICE, HOME, WRITE, TOPIC) is expected


def test_a_denial_includes_no_other_operation() -> None:
    topic = ResourcePattern(TOPIC, "a")
    rules = rules_of(
        (topic, AccessControlEntry(ALICE, "*", READ, DENY)),
        (topic, AccessControlEntry(ALICE, "*", WRITE, ALLOW)),
    )
    assert rules.decide(ALICE, HOME, DESCRIBE, TOPIC, "a") is Decision.ALLOWED
    assert rules.decide(ALICE, HOME, READ, TOPIC, "a") is Decision.DENIED


def test_hosts_are_compared_as_addresses() -> None:
    """Java writes 0:0:0:0:0:0:0:1, Python ::1."""
    topic = ResourcePattern(TOPIC, "a")
    rules = rules_of((topic, AccessControlEntry(ALICE, "0:0:0:0:0:0:0:1", READ, ALLOW)))
    assert rules.decide(ALICE, "::1", READ, TOPIC, "a") is Decision.ALLOWED
    assert rules.decide(ALICE, "::2", READ, TOPIC, "a") is Decision.DENIED


def test_removed_rules_leave_no_prefix_behind() -> None:
    rules = Rules()
    pattern = ResourcePattern(TOPIC, "a", PREFIXED)
    rules.replace(pattern, [AccessControlEntry(ALICE, "*", READ, ALLOW)])
    rules.replace(pattern, [])
    assert rules.decide(ALICE, HOME, READ, TOPIC, "abc") is Decision.NO_ACL
    assert list(rules) == []


def test_no_operation_implies_another_on_any_resource() -> None:
    """As in Kafka: Read on a topic does not count as Describe on some topic."""
    for name in ("a", "*"):
        rules = rules_of((ResourcePattern(TOPIC, name), AccessControlEntry(ALICE, "*", READ, ALLOW)))
        assert rules.decide(ALICE, HOME, DESCRIBE, TOPIC, "a") is Decision.ALLOWED
        assert rules.allows_some(ALICE, HOME, READ, TOPIC)
        assert not rules.allows_some(ALICE, HOME, DESCRIBE, TOPIC)


def test_any_pattern_that_is_not_denied_allows_the_operation_on_some_resource() -> None:
    """Whatever patterns the search meets first."""
    allowing, denying = (AccessControlEntry(ALICE, "*", WRITE, each) for each in (ALLOW, DENY))
    of_bob = AccessControlEntry(BOB, "*", WRITE, ALLOW)
    others = [(ResourcePattern(TOPIC, "a"), of_bob), (ResourcePattern(TOPIC, "b"), allowing)]
    others.append((ResourcePattern(TOPIC, "b"), denying))
    for kind in (LITERAL, PREFIXED):
        assert rules_of(*others, (ResourcePattern(TOPIC, "c", kind), allowing)).allows_some(
            ALICE, HOME, WRITE, TOPIC
        )
    assert not rules_of(*others).allows_some(ALICE, HOME, WRITE, TOPIC)


def test_a_prefix_that_is_denied_as_well_allows_nothing() -> None:
    prefix = ResourcePattern(TOPIC, "a", PREFIXED)
    allowing, denying = (AccessControlEntry(ALICE, "*", WRITE, each) for each in (ALLOW, DENY))
    assert not rules_of((prefix, allowing), (prefix, denying)).allows_some(ALICE, HOME, WRITE, TOPIC)


def test_a_length_is_looked_up_while_there_are_prefixes_of_it() -> None:
    """A decision costs one look-up for each: prefixes that are gone must cost nothing."""
    rules, entry = Rules(), AccessControlEntry(ALICE, "*", READ, ALLOW)
    lengths = rules._types[TOPIC].lengths
    for name in ("ab", "cd", "abc"):
        rules.replace(ResourcePattern(TOPIC, name, PREFIXED), [entry])
    rules.replace(ResourcePattern(TOPIC, "ab", PREFIXED), [entry, entry._replace(host=HOME)])
    assert lengths == {2: 2, 3: 1}
    for name in ("ab", "abc"):
        rules.replace(ResourcePattern(TOPIC, name, PREFIXED), [])
    assert lengths == {2: 1}
    assert rules.decide(ALICE, HOME, READ, TOPIC, "cde") is Decision.ALLOWED
    rules.replace(ResourcePattern(TOPIC, "cd", PREFIXED), [])
    assert list(lengths) == []


def test_replacing_all_reports_whether_anything_has_changed() -> None:
    a, b = ResourcePattern(TOPIC, "a"), ResourcePattern(TOPIC, "b")
    entry = AccessControlEntry(ALICE, "*", READ, ALLOW)
    rules = Rules()
    assert rules.replace_all({a: [entry], b: [entry]})
    assert not rules.replace_all({a: [entry], b: [entry]})
    assert rules.replace_all({a: [entry]}), "one is gone"
    assert rules.replace_all({a: [entry._replace(operation=WRITE)]}), "one has changed"


def test_a_host_matches_in_every_form_of_its_address() -> None:
    for written in ("::ffff:10.0.0.1", "0:0:0:0:0:ffff:a00:1", "10.0.0.1"):
        entry = AccessControlEntry(ALICE, written, READ, ALLOW)
        assert (
            rules_of((ResourcePattern(TOPIC, "a"), entry)).decide(ALICE, "10.0.0.1", READ, TOPIC, "a")
            is Decision.ALLOWED
        )
