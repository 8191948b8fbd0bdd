"""The parts of a broker that handlers may take: by the types of their parameters."""

from __future__ import annotations

from typing import Protocol, get_type_hints

from ..administration.configs import ConfigAdministrator
from ..administration.producer_ids import ProducerIds
from ..administration.topics import TopicAdministrator
from ..cluster.cluster import Cluster
from ..cluster.controllership import Controllership
from ..cluster.forwarding import Forwarding
from ..config.config import BrokerConfig
from ..coordination.coordination import Coordination
from ..groups.driver import GroupDriver
from ..log.manager import LogManager
from ..log.timestamp_lookups import LookUps
from ..metadata.effective_configs import EffectiveConfigs
from ..metadata.encoded_topics import EncodedTopics
from ..network.handlers import REGISTERED, Bound, Handlers
from ..replication.fetch_sessions import Sessions
from ..replication.manager import ReplicaManager
from ..replication.replicas import Replicas
from ..replication.transactional_appends import TransactionalAppends
from ..runtime.stats import Stats
from ..security.acl.authorizer import Authorizer
from ..security.audit.trail import AuditTrail
from ..security.quotas.quotas import Quotas
from ..security.scram_credentials import ScramCredentials
from ..transactions.driver import TransactionDriver
from ..transactions.verifier import CoordinatorVerifier
from .marker_writes import MarkerWrites


class Parts(Protocol):
    """Each part has a type of its own, which names it. To offer handlers another part, add it here and to `Broker`."""

    config: BrokerConfig
    stats: Stats
    handlers: Handlers
    quotas: Quotas
    authorizer: Authorizer

    # Administration
    configs: EffectiveConfigs
    config_administrator: ConfigAdministrator
    topic_administrator: TopicAdministrator
    producer_ids: ProducerIds
    scram_credentials: ScramCredentials

    # Records and positions
    replicas: Replicas
    replica_manager: ReplicaManager
    transactional_appends: TransactionalAppends
    fetch_sessions: Sessions
    logs: LogManager
    look_ups: LookUps
    encoded_topics: EncodedTopics
    groups: GroupDriver
    transactions: TransactionDriver
    transaction_verifier: CoordinatorVerifier
    marker_writes: MarkerWrites

    # The cluster
    cluster: Cluster
    controllership: Controllership
    coordination: Coordination
    forwarding: Forwarding


def bind(parts: Parts, trail: AuditTrail) -> dict[int, Bound]:
    """The handlers of the broker that has these parts; `trail` records their requests.

    Raises TypeError if a handler needs another part.
    """
    by_type = {kind: getattr(parts, name) for name, kind in get_type_hints(Parts).items()}
    return {key: registration.bound(by_type, trail) for key, registration in REGISTERED.items()}
