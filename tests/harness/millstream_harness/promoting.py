"""Promotions of an Identity mirror: replicas like a worker's, and one operator after another that promotes them.

The operator is its own code with real brokers; Kubernetes is in memory. Its process may end at any of its writes.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from millstream_harness.in_memory import NOW, InMemory, MemoryKube, ToldBrokers, stored
from millstream_harness.manifests import resource
from millstream_harness.mirrored import Source, mirror_several
from millstream_harness.mortal import Life
from millstream_kafka.admin.records import OffsetAndMetadata
from millstream_kafka.client import ClusterClient
from millstream_kafka.protocol.errors import ApiError
from millstream_operator.kafka.admin import KafkaAdmin
from millstream_operator.kafka.mirror_records import KEY, TargetTopic, group_of, mark_of
from millstream_operator.kafka.mirrored import target_topics
from millstream_operator.kafka.pools import AdminPool, OwnAdmins
from millstream_operator.kafka.records import ConfigChange, NewTopic
from millstream_operator.models import MirrorMaker, decode_as
from millstream_operator.reconcile.mirror.apply import reconcile_mirror

KIND = "MirrorMaker"
NOWHERE = "127.0.0.1:1"
FILL_S = 30.0
SEEN_MS = 1_763_971_200_000


class MortalKube(MemoryKube):
    life = Life()

    def apply(self, manifest: Mapping[str, Any], subresource: str = "") -> Any:
        if manifest["kind"] != KIND:
            return super().apply(manifest, subresource)
        return self.life.write(lambda: super(MortalKube, self).apply(manifest, subresource))


class MortalAdmin(KafkaAdmin):
    life = Life()

    def change_configs(self, changes: Mapping[str, ConfigChange]) -> Any:
        return self.life.write(lambda: super(MortalAdmin, self).change_configs(changes))


class Pool(AdminPool):
    """The operator's clients, any write of which may be its last."""

    def new(self, bootstrap: str) -> KafkaAdmin:
        return MortalAdmin(bootstrap)


@dataclass
class Replica:
    """A topic of the target, like one that a worker has created; ``source`` has the batches of each partition."""

    name: str
    partitions: int = 1
    source: Source = field(default_factory=Source)

    @property
    def setting(self) -> str:
        return str(self.source.topic)


class World:
    """A MirrorMaker with its target, and one operator after another."""

    def __init__(self, target: str, name: str, source: str = NOWHERE, **spec: Any) -> None:
        self.target, self.name = target, name
        self.pool = OwnAdmins(Pool)
        self.admin = KafkaAdmin(target)
        """The test's own client; the operator closes only its connections."""
        wanted: dict[str, Any] = {
            "sources": [{"name": "west", "bootstrap": source}],
            "target": {"bootstrap": target},
            "topics": {"include": [f"{name}.*"]},
            "mode": "Identity",
            **spec,
        }
        self.kube = MortalKube(stored(resource(KIND, name, **wanted)))
        self.now = NOW
        """The operator's clock."""

    def close(self) -> None:
        self.pool.close()
        self.admin.close()

    @property
    def manifest(self) -> dict[str, Any]:
        return self.kube.objects[KIND, self.name]

    def ask(self, request: str | None, *topics: str) -> None:
        """Request the promotion of these topics, or of all; None: of none."""
        self.manifest["spec"].pop("promote", None)
        if request is not None:
            promote = {"requestId": request, **({"topics": [*topics]} if topics else {})}
            self.manifest["spec"]["promote"] = promote

    def apply_again(self) -> None:
        """Delete the resource, and apply its manifest once more."""
        for kind in ("ConfigMap", "Deployment"):  # Kubernetes removes them with their owner
            self.kube.objects.pop((kind, f"{self.name}-mirror"), None)
        self.manifest.pop("status", None)
        self.manifest["metadata"]["uid"] = str(uuid.uuid4())

    def look(self, life: Life | None = None) -> dict[str, Any]:
        """Reconcile once with a new operator; return the status."""
        self.kube.life = MortalAdmin.life = life or Life()
        operator = InMemory(self.kube, ToldBrokers())
        object.__setattr__(operator.services, "outside", self.pool)
        object.__setattr__(operator.services, "now", lambda: self.now)
        try:
            reconcile_mirror(operator.services, decode_as(MirrorMaker, self.manifest))
        finally:
            self.kube.life = MortalAdmin.life = Life()
        return operator.status(KIND, self.name)

    def condition(self, which: str = "Promoted") -> tuple[str, str, str] | None:
        return InMemory(self.kube, ToldBrokers()).condition(KIND, self.name, which)

    def topic(self, name: str) -> TargetTopic:
        return target_topics(self.admin, [name])[name]

    def writable(self, *names: str) -> list[bool]:
        found = target_topics(self.admin, names)
        return [not found[name].source for name in names]

    def replica(
        self,
        name: str,
        counts: Sequence[int] = (3,),
        *,
        source: Source | None = None,
        noted: bool = True,
        config: Mapping[str, str] | None = None,
    ) -> Replica:
        """Create a replica with this many records in each partition, and a worker's note about it."""
        made = Replica(name, len(counts), source or Source())
        settings = {KEY: made.setting, **(config or {})}
        refused = self.admin.create_topics([NewTopic(name, len(counts), 1, settings)])
        assert refused == {name: None}
        asyncio.run(self._fill(made, counts))
        if noted:
            self.note(made, [count + 7 for count in counts])
        return made

    async def _fill(self, made: Replica, counts: Sequence[int]) -> None:
        parts = []
        for partition, count in enumerate(counts):
            batches = Source()
            batches.epoch = 5
            parts.append((partition, 0, batches.add(count) if count else None, 0))
        async with ClusterClient(self.target) as client, asyncio.timeout(FILL_S):
            while True:  # brokers of a cluster hear of a new topic one after the other
                with contextlib.suppress(ApiError):
                    await client.metadata([made.name])
                    connection = await client.connection(await client.leader(made.name, 0))
                    answers = await mirror_several(connection, made.name, made.source.topic, parts)
                    if all(one.error_code == 0 for one in answers):
                        return
                await asyncio.sleep(0.05)

    def note(self, made: Replica, source_ends: Sequence[int]) -> None:
        """Write a worker's note about it: the source has this many records."""
        mark = mark_of(self.topic(made.name).topic_id)
        told = {
            "v": 1,
            "producer": [mark, 0, 0],
            "first": 0,
            "end": 0,
            "topicId": str(made.source.topic.topic_id),
            "cluster": made.source.topic.cluster_id,
            "at": SEEN_MS,
        }
        positions = {
            (made.name, partition): OffsetAndMetadata(1, json.dumps({**told, "source": [end, SEEN_MS]}))
            for partition, end in enumerate(source_ends)
        }
        group = group_of(self.name, "west")
        self.admin.call(lambda client: client.commit(group, positions))
