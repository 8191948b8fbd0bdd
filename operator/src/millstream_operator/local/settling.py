"""Brokers that hear of a topic one after the other: what `millstream local up` reconciles with.

`up` looks again until what it has made is there. The broker that is asked then may not know yet of a topic that another
one has created: to be told that it exists is no refusal, but a reason to look once more.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

from ..kafka_admin import AdminPool, KafkaAdmin, NewTopic, Refusal


class SettlingAdmin(KafkaAdmin):
    def create_topics(self, topics: Iterable[NewTopic]) -> dict[str, Refusal | None]:
        answers = super().create_topics(topics)
        return {
            name: None if no is not None and no.error == "TOPIC_ALREADY_EXISTS" else no
            for name, no in answers.items()
        }


class SettlingPool(AdminPool):
    def __init__(self) -> None:
        super().__init__()
        self._guard = threading.Lock()

    def at(self, bootstrap: str) -> KafkaAdmin:
        with self._guard:
            return self._admins.setdefault(bootstrap, SettlingAdmin(bootstrap))
