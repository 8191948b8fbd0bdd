"""Transactions of Kafka, which this library does not have yet: who configures them is refused.

librdkafka accepts ``transactional.id`` in any configuration. A producer with one fails at its first record, because
nothing began a transaction, and says "Local: Erroneous state".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from millstream.errors import BadInput

KEY: Final = "transactional.id"
ADD_PARTITIONS_TO_TXN: Final = 24


def refuse(config: Mapping[str, Any]) -> None:
    """BadInput for a client configuration with a ``transactional.id``."""
    if KEY in config:
        raise BadInput(
            f"config: {KEY} is not allowed: this library has no transactions",
            'leave it out; acks="all" alone puts each record into the log once, and results with their positions can '
            "go into one transaction of your database (docs/client/exactly-once.md)",
        )


def problem(config: Mapping[str, Any], versions: Mapping[int, tuple[int, int]]) -> str:
    """What a client with this configuration runs into at a broker with these API versions; "" if nothing."""
    if KEY not in config or ADD_PARTITIONS_TO_TXN in versions:
        return ""
    return (
        f"it has no transactions, and the client's {KEY} begins them; leave {KEY} out: an idempotent producer "
        "(enable.idempotence=true) still puts each record into the log once"
    )
