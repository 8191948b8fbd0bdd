"""Read-only access to brokers: `millstream local status` reconciles with it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from ..kafka.admin import KafkaAdmin
from ..kafka.pools import AdminPool
from ..kafka.records import ConfigChange, Mark, NewTopic, Partition, Refusal

NOT_NOW = Refusal("NOT_CHANGED", "it differs from the manifest; `millstream local up` applies the manifest")


class ObservingAdmin(KafkaAdmin):
    def create_topics(self, topics: Iterable[NewTopic]) -> dict[str, Refusal | None]:
        return {topic.name: NOT_NOW for topic in topics}

    def add_partitions(self, totals: Mapping[str, int]) -> dict[str, Refusal | None]:
        return dict.fromkeys(totals, NOT_NOW)

    def change_configs(self, changes: Mapping[str, ConfigChange]) -> dict[str, Refusal | None]:
        return dict.fromkeys(changes, NOT_NOW)

    def reassign(self, moves: Mapping[tuple[str, int], Sequence[int]]) -> dict[tuple[str, int], Refusal]:
        return dict.fromkeys(moves, NOT_NOW)

    def change_brokers_config(self, change: ConfigChange) -> Refusal | None:
        return NOT_NOW

    def delete_topics(self, topics: Mapping[str, str | None]) -> dict[str, Refusal | None]:
        return dict.fromkeys(topics, NOT_NOW)

    def commit(
        self, group_id: str, offsets: Mapping[Partition, int], mark: Mark | None = None
    ) -> Refusal | None:
        return NOT_NOW

    def delete_offsets(self, group_id: str, partitions: Iterable[Partition]) -> Refusal | None:
        return NOT_NOW

    def delete_groups(self, group_ids: Collection[str]) -> dict[str, Refusal | None]:
        return dict.fromkeys(group_ids, NOT_NOW)


class ObservingPool(AdminPool):
    def new(self, bootstrap: str) -> KafkaAdmin:
        return ObservingAdmin(bootstrap)
