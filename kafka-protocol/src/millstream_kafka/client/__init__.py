"""Asynchronous client of Kafka's protocol, for the mirror worker, for replicas and for tests.

Connection      one connection to one broker
ClusterClient   the brokers of a cluster: finds leaders and coordinators, connects and reconnects
security        their credentials: TLS and SASL (sasl.py, scram.py), from files
errors          their exceptions
"""

from .cluster import ClusterClient, parse_bootstrap
from .connection import MAX_RESPONSE_BYTES, Connection
from .errors import (
    AuthenticationFailed,
    BrokerError,
    ConnectFailed,
    ConnectionLost,
    CredentialsMissing,
    MalformedResponse,
    RequestTimedOut,
    SecurityFailed,
    TlsFailed,
    UnsupportedApi,
)
from .sasl import MECHANISMS, OAUTHBEARER
from .security import Credential, Sasl, Security, Tls

__all__ = [
    "MAX_RESPONSE_BYTES",
    "MECHANISMS",
    "OAUTHBEARER",
    "AuthenticationFailed",
    "BrokerError",
    "ClusterClient",
    "ConnectFailed",
    "Connection",
    "ConnectionLost",
    "Credential",
    "CredentialsMissing",
    "MalformedResponse",
    "RequestTimedOut",
    "Sasl",
    "Security",
    "SecurityFailed",
    "Tls",
    "TlsFailed",
    "UnsupportedApi",
    "parse_bootstrap",
]
