"""ACLs of nodes, as Kafka sets them with `zookeeper.set.acl`.

Brokers may do everything, others may read what is no secret.
"Brokers" are clients with the identity of the broker that sets the ACL: its SASL user and, by TLS, the subject of its
certificate.
"""

from __future__ import annotations

from typing import Any

from kazoo import exceptions as kazoo
from kazoo.security import CREATOR_ALL_ACL, READ_ACL_UNSAFE, Permissions

from .. import tree
from . import NotAllowed

ROOTS = (
    *("/admin", "/brokers", "/cluster", "/config", "/controller", "/controller_epoch", "/delegation_token"),
    *("/feature", "/isr_change_notification", "/kafka-acl", "/kafka-acl-changes", "/kafka-acl-extended"),
    *(
        "/kafka-acl-extended-changes",
        "/latest_producer_id_block",
        "/log_dir_event_notification",
        "/migration",
    ),
)
"""Where a cluster's nodes are. Nodes beside them may be others'."""


def acl_of(path: str) -> list[Any] | None:
    """The ACL of a node, by its path below the chroot; None: everybody may do everything.

    As in Kafka, consumers that coordinate by ZooKeeper write below /consumers.
    """
    if path == tree.CONSUMERS:
        return None
    return list(CREATOR_ALL_ACL) if tree.is_sensitive(path) else [*CREATOR_ALL_ACL, *READ_ACL_UNSAFE]


def is_open(path: str, acl: list[Any]) -> bool:
    """Whether the ACL of a node gives everybody more than `acl_of`."""
    allowed = 0 if tree.is_sensitive(path) else Permissions.READ
    return any(each.id.scheme == "world" and each.perms & ~allowed for each in acl)


def holds_open(path: str, is_open: bool) -> bool:
    """Whether nodes below may be open. Those of a topic become restricted before the topic."""
    return is_open or not path.startswith(f"{tree.TOPICS}/")


def refusal(store: object, error: Exception) -> NotAllowed | None:
    """The error of a broker that ZooKeeper does not know, or lets do nothing; None for other errors."""
    if isinstance(error, kazoo.InvalidACLError):
        return NotAllowed(
            f"{store} does not know who the broker is, so zookeeper.set.acl=true would let nobody use the nodes:"
            " enable SASL on its servers, or x509 for client certificates"
        )
    if isinstance(error, kazoo.NoAuthError):
        return NotAllowed(
            f"{store} refuses the broker: only those may use the cluster's nodes that created them"
            " (zookeeper.set.acl). Set zookeeper.sasl.jaas.config, or zookeeper.ssl.keystore.location, as the"
            " cluster's other brokers have them"
        )
    return None
