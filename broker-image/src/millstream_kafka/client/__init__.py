"""Asynchronous client of Kafka's protocol, for the mirror worker, for replicas and for tests.

Connection      one connection to one broker
ClusterClient   the brokers of a cluster: finds leaders and coordinators, connects and reconnects
errors          their exceptions
"""

from .cluster import ClusterClient, parse_bootstrap
from .connection import MAX_RESPONSE_BYTES, Connection
from .errors import (
    BrokerError,
    ConnectFailed,
    ConnectionLost,
    MalformedResponse,
    RequestTimedOut,
    UnsupportedApi,
)

__all__ = [
    "MAX_RESPONSE_BYTES",
    "BrokerError",
    "ClusterClient",
    "ConnectFailed",
    "Connection",
    "ConnectionLost",
    "MalformedResponse",
    "RequestTimedOut",
    "UnsupportedApi",
    "parse_bootstrap",
]
