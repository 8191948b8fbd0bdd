"""Listeners of a Cluster: addresses inside and outside Kubernetes, and the peers allowed to connect."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import field
from msgspec.structs import replace

from .base import Spec

BROKER = "{broker}"
"""Placeholder for the broker's number, in advertised hosts and in annotations."""


class Peer(Spec, frozen=True, omit_defaults=True):
    """As in a NetworkPolicy; Kubernetes checks the contents when the operator applies them."""

    pod_selector: dict[str, Any] | None = None
    namespace_selector: dict[str, Any] | None = None
    ip_block: dict[str, Any] | None = None


class BrokerAddress(Spec, frozen=True):
    broker: int
    advertised_host: str | None = None
    advertised_port: int | None = None


class BootstrapService(Spec, frozen=True):
    host: str | None = None
    node_port: int | None = None
    annotations: dict[str, str] = field(default_factory=dict)


class ListenerAuthentication(Spec, frozen=True):
    """``None`` states that there is none: a listener without the field has that of the Cluster's defaults."""

    type: Literal["ScramSha512", "Tls", "None"]


class DefaultAuthentication(Spec, frozen=True):
    type: Literal["ScramSha512", "None"]


class ListenerDefaults(Spec, frozen=True):
    """What listeners have that do not state it."""

    tls: Literal["Enabled", "Disabled"] | None = None
    authentication: DefaultAuthentication | None = None

    def completed(self, others: ListenerDefaults) -> ListenerDefaults:
        return ListenerDefaults(
            tls=self.tls or others.tls, authentication=self.authentication or others.authentication
        )


SECURE = ListenerDefaults(tls="Enabled", authentication=DefaultAuthentication(type="ScramSha512"))
"""Those of a new Cluster that states none."""


class Listener(Spec, frozen=True):
    """``allow_plaintext``: the API server requires it of external listeners that are new or change. A stored listener
    without it keeps working. ``port``: the API server refuses 9090 and 9091 in the same way."""

    name: str
    type: Literal["Internal", "NodePort", "LoadBalancer"]
    port: int
    node_port: int | None = None
    tls: Literal["Enabled", "Disabled"] | None = None
    allow_plaintext: bool = False
    authentication: ListenerAuthentication | None = None
    advertised_host: str | None = None
    advertised_port: int | None = None
    brokers: tuple[BrokerAddress, ...] = ()
    bootstrap: BootstrapService = field(default_factory=BootstrapService)
    annotations: dict[str, str] = field(default_factory=dict)
    load_balancer_source_ranges: tuple[str, ...] = ()
    external_traffic_policy: Literal["Cluster", "Local"] | None = None
    network_policy_peers: tuple[Peer, ...] = ()

    @property
    def unstated(self) -> tuple[str, ...]:
        """The fields about its security that it leaves out; `allowPlaintext` states that there is no TLS."""
        return (
            *(("authentication",) if self.authentication is None else ()),
            *(("tls",) if self.tls is None and not self.allow_plaintext else ()),
        )

    def completed(self, defaults: ListenerDefaults) -> Listener:
        """The listener with the defaults for what it leaves out."""
        default = defaults.authentication
        return replace(
            self,
            authentication=self.authentication or (default and ListenerAuthentication(type=default.type)),
            tls=defaults.tls if "tls" in self.unstated else self.tls,
        )

    @property
    def is_encrypted(self) -> bool:
        return self.tls == "Enabled"

    @property
    def has_login(self) -> bool:
        """Whether clients authenticate."""
        return self.authentication is not None and self.authentication.type != "None"

    @property
    def has_sasl(self) -> bool:
        return self.authentication is not None and self.authentication.type == "ScramSha512"

    @property
    def protocol(self) -> str:
        """Kafka's security protocol."""
        return ("SASL_" if self.has_sasl else "") + ("SSL" if self.is_encrypted else "PLAINTEXT")

    @property
    def needs_certificate(self) -> bool:
        """Whether clients authenticate by a certificate."""
        return self.authentication is not None and self.authentication.type == "Tls"

    @property
    def is_open(self) -> bool:
        """Whether clients connect in plain text, without a login."""
        return not self.has_login and not self.is_encrypted

    @property
    def opened(self) -> Listener:
        """The listener without what its clients need a configuration for."""
        return replace(self, authentication=None, tls=None)


class NetworkPolicy(Spec, frozen=True):
    enabled: bool = False
    metrics_peers: tuple[Peer, ...] = ()
