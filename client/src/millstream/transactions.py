"""``transactional.id`` where it has no meaning: librdkafka accepts it in any configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from millstream.errors import BadInput

KEY: Final = "transactional.id"
ADD_PARTITIONS_TO_TXN: Final = 24


def refuse(config: Mapping[str, Any]) -> None:
    """BadInput for a consumer's configuration with a ``transactional.id``."""
    if KEY in config:
        raise BadInput(
            f"config: {KEY} is not allowed: a consumer has none",
            "give it to the producer as transactional_id, and the stream to its transactions",
        )


def problem(config: Mapping[str, Any], versions: Mapping[int, tuple[int, int]]) -> str:
    """What a client with this configuration runs into at a broker with these API versions; "" if nothing."""
    if KEY not in config or ADD_PARTITIONS_TO_TXN in versions:
        return ""
    return (
        f"it has no transactions, and the client's {KEY} begins them; leave {KEY} out: an idempotent producer "
        "(enable.idempotence=true) still puts each record into the log once"
    )
