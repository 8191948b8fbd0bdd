"""Whether a tree is this cluster's, and not older than what a broker has seen there. Reads only.

Each function returns what is wrong, for the log, or an empty string.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ..log.known_states import KnownState, contradicts
from ..runtime.slices import cooperatively
from . import PartitionRecord, TopicRecord, tree, writes
from .stores import Store


async def foreign(nodes: Store, cluster_id: str) -> str:
    """Why the tree is not this cluster's."""
    node = await nodes.get(tree.CLUSTER_ID)
    if node is not None and (found := tree.cluster_id_from(node.data)) == cluster_id:
        return ""
    whose = "is empty" if node is None else f"has the tree of cluster {found}"
    return (
        f"{nodes} {whose}, this is cluster {cluster_id}: the broker continues with what it knows, as if ZooKeeper were"
        " down. Restore the cluster's tree there."
    )


async def older_generation(nodes: Store, broker_id: int, shown: Mapping[str, int]) -> str:
    """A log directory whose generation the tree has forgotten; `shown` are the generations that the broker wrote."""
    stored = await writes.read_generations(nodes, broker_id)
    for directory, generation in shown.items():
        if stored.get(directory, 0) < generation:
            return f"it has generation {stored.get(directory, 0)} of log directory {directory}, it had {generation}"
    return ""


async def older_state(
    nodes: Store, topics: Mapping[str, TopicRecord], concerns: Callable[[PartitionRecord], bool]
) -> str:
    """A partition whose stored state is older than the one known; only of partitions that concern the broker."""
    concerned = [
        (topic, index)
        for topic in topics.values()
        async for index, record in cooperatively(enumerate(topic.partitions))
        if record.version >= 0 and concerns(record)
    ]
    stored = await nodes.get_all(tree.state_path(topic.name, index) for topic, index in concerned)
    for (topic, index), node in zip(concerned, stored, strict=True):
        record = topic.partitions[index]
        known = KnownState(record.leader_epoch, record.version)
        if node is None:
            continue
        path = tree.state_path(topic.name, index)
        found = KnownState(tree.leader_epoch_from(path, node.data), node.version)
        if not contradicts(known, found):
            continue
        above = await nodes.get(tree.topic_path(topic.name))
        if above is not None and tree.topic_id_from(topic.name, above.data) == topic.topic_id:
            return (
                f"it has version {found.version}, leader epoch {found.leader_epoch} of the state of"
                f" {topic.name}-{index}, it had version {known.version}, leader epoch {known.leader_epoch}"
            )
    return ""
