"""Follows the quotas that are stored in coordination."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from ...coordination.coordination import Coordination
from ...coordination.entities import Entity
from .quotas import Quotas

log = logging.getLogger(__name__)


def follow(quotas: Quotas, coordination: Coordination) -> None:
    """Take over the stored quotas, and their changes from now on, which take effect at once."""

    def take(entities: Iterable[Entity]) -> None:
        stored = coordination.entity_configs
        for entity in entities:
            for problem in quotas.update(entity, stored.get(entity, {})):
                log.warning("config/%s: a quota has no effect: %s", entity.path, problem)

    coordination.on_entities.append(take)
    take(list(coordination.entity_configs))
