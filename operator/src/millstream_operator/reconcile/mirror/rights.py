"""MirrorMaker: the rights of its workers' user in a source and in the target; pure.

They are as few as access rules can say: rules know names and beginnings, patterns much more (`pattern_names`). In a
source, what `exclude` names is denied. In the target, rules stay as long as the MirrorMaker exists: workers note there
which topics they no longer mirror.
"""

from __future__ import annotations

from collections.abc import Iterator

from millstream_kafka.acl import CLUSTER_NAME, AclOperation, ResourceType

from ...kafka.mirror_records import GROUP_PREFIX, group_of
from ...kafka.records import Acl
from ...models import MirrorMaker
from ...resources.mirror import Endpoint
from ...resources.pod_user import PodUser, rule
from ...validation.pattern_names import Covered, covered, exactly
from ..common.pod_users import Rights

TOPIC, GROUP, CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
Op = AclOperation
INTERNAL = "__"
"""The beginning of topics that no worker mirrors."""
OF_GROUPS = "__consumer_offsets"
SET_ASIDE = ".set-aside"
IN_SOURCE = (Op.READ, Op.DESCRIBE_CONFIGS)
IN_TARGET = (Op.CREATE, Op.READ, Op.WRITE, Op.ALTER)
OF_REPLICAS = (Op.DESCRIBE_CONFIGS, Op.ALTER_CONFIGS)
CHANGES = (Op.READ, Op.WRITE, Op.CREATE, Op.DELETE, Op.ALTER, Op.ALTER_CONFIGS)


def rights_of(
    mirror: MirrorMaker, user: PodUser, sources: tuple[Endpoint, ...], target: Endpoint, cluster: str
) -> Rights:
    """The rights in one Cluster, named "NAMESPACE/NAME"."""
    found: set[Acl] = set()
    for source in sources:
        if source.cluster == cluster:
            found.update(_in_source(mirror, user))
        if target.cluster == cluster:
            found.update(_in_target(mirror, user, source))
    return Rights(frozenset(found), stay=target.cluster == cluster)


def _in_source(mirror: MirrorMaker, user: PodUser) -> Iterator[Acl]:
    topics = covered(mirror.spec.topics.include)
    yield from _allowed(user, TOPIC, topics, IN_SOURCE)
    denied = exactly(mirror.spec.topics.exclude)
    if _reach_internal(topics):
        denied |= {Covered(INTERNAL, True)}
    for each in denied:
        yield rule(user, TOPIC, each.text, Op.ALL, is_prefix=each.is_prefix, is_denied=True)
    yield rule(user, GROUP, GROUP_PREFIX, Op.DESCRIBE, is_prefix=True)
    yield from _allowed(user, GROUP, _groups(mirror), (Op.DESCRIBE,))


def _in_target(mirror: MirrorMaker, user: PodUser, source: Endpoint) -> Iterator[Acl]:
    prefix = "" if mirror.spec.naming == "Same" else f"{source.name}."
    topics = frozenset(
        Covered(prefix + each.text, each.is_prefix) for each in covered(mirror.spec.topics.include)
    )
    yield from _allowed(user, TOPIC, topics, IN_TARGET)
    if _reach_internal(topics):
        for operation in CHANGES:
            yield rule(user, TOPIC, INTERNAL, operation, is_prefix=True, is_denied=True)
    yield rule(user, GROUP, GROUP_PREFIX, Op.DESCRIBE, is_prefix=True)
    yield rule(user, GROUP, group_of(mirror.name, source.name), Op.READ)
    yield from _allowed(user, GROUP, _groups(mirror), (Op.READ,))
    if mirror.spec.mode == "Identity":
        yield rule(user, CLUSTER, CLUSTER_NAME, Op.CLUSTER_ACTION)
        yield from _allowed(user, TOPIC, topics, OF_REPLICAS)
    if mirror.spec.rejoin is not None:
        aside = frozenset(Covered(each.text + SET_ASIDE, False) for each in topics if not each.is_prefix)
        yield from _allowed(user, TOPIC, aside, (*IN_TARGET, *OF_REPLICAS))
        yield from _allowed(user, TOPIC, topics, (Op.DELETE,))
        yield rule(user, TOPIC, OF_GROUPS, Op.DESCRIBE)


def _groups(mirror: MirrorMaker) -> frozenset[Covered]:
    return frozenset() if mirror.spec.groups is None else covered(mirror.spec.groups.include)


def _allowed(
    user: PodUser, kind: ResourceType, names: frozenset[Covered], operations: tuple[AclOperation, ...]
) -> Iterator[Acl]:
    for each in names:
        for operation in operations:
            yield rule(user, kind, each.text, operation, is_prefix=each.is_prefix)


def _reach_internal(names: frozenset[Covered]) -> bool:
    return any(each.is_prefix and INTERNAL.startswith(each.text) for each in names)
