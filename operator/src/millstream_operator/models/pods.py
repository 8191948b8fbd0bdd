"""What a user may add to pods: named fields, none of which gives a pod more rights than the operator gives it.

Whoever may create a Cluster need not be allowed to create pods. So nothing here reaches the host, Secrets, service
accounts, images or the security context, and no label changes which pods the operator's selectors find.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, field

from .base import Spec

RESERVED_DOMAINS = ("kubernetes.io/", "k8s.io/", "millstream.dev/")
"""Keys of labels and annotations that contain one of these are Kubernetes' or the operator's."""
RESERVED_LABELS = frozenset(("controller-revision-hash",))
FREE_LABELS = frozenset(("app.kubernetes.io/part-of", "app.kubernetes.io/version"))
FREE_ANNOTATIONS = "cluster-autoscaler.kubernetes.io/"
RESERVED_ENV = frozenset(("HOST_IP", "NODE_NAME", "POD_INDEX"))
"""Environment variables that the operator sets."""

Key = Annotated[str, Meta(max_length=317)]
LabelValue = Annotated[str, Meta(max_length=63, pattern=r"^([a-zA-Z0-9]([-a-zA-Z0-9_.]*[a-zA-Z0-9])?)?$")]
Text = Annotated[str, Meta(max_length=4096)]


def _reserved(keys: Iterable[str]) -> list[str]:
    return sorted(key for key in keys if any(domain in key for domain in RESERVED_DOMAINS))


class TemplateMetadata(Spec, frozen=True, omit_defaults=True):
    labels: Annotated[dict[str, LabelValue], Meta(max_length=64)] = field(default_factory=dict)
    annotations: Annotated[dict[str, Text], Meta(max_length=64)] = field(default_factory=dict)

    def __post_init__(self) -> None:
        labels = self.labels.keys()
        if taken := [*_reserved(labels - FREE_LABELS), *sorted(labels & RESERVED_LABELS)]:
            raise ValueError(f"labels: {taken[0]} is reserved for Kubernetes and the operator")
        if taken := _reserved(key for key in self.annotations if not key.startswith(FREE_ANNOTATIONS)):
            raise ValueError(f"annotations: {taken[0]} is reserved for Kubernetes and the operator")


class Toleration(Spec, frozen=True, omit_defaults=True):
    key: Key | None = None
    operator: Literal["Equal", "Exists"] | None = None
    value: Annotated[str, Meta(max_length=63)] | None = None
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    toleration_seconds: int | None = None


class Affinity(Spec, frozen=True, omit_defaults=True):
    """As in a PodSpec; Kubernetes checks what is inside when the operator applies it."""

    node_affinity: dict[str, Any] | None = None
    pod_affinity: dict[str, Any] | None = None
    pod_anti_affinity: dict[str, Any] | None = None


class SpreadConstraint(Spec, frozen=True, omit_defaults=True):
    max_skew: Annotated[int, Meta(ge=1)]
    topology_key: Annotated[str, Meta(min_length=1, max_length=317)]
    when_unsatisfiable: Literal["DoNotSchedule", "ScheduleAnyway"]
    label_selector: dict[str, Any] | None = None
    min_domains: Annotated[int, Meta(ge=1)] | None = None
    node_affinity_policy: Literal["Honor", "Ignore"] | None = None
    node_taints_policy: Literal["Honor", "Ignore"] | None = None
    match_label_keys: Annotated[tuple[Key, ...], Meta(max_length=16)] = ()


class PullSecret(Spec, frozen=True):
    name: Annotated[str, Meta(min_length=1, max_length=253)]


class Variable(Spec, frozen=True):
    name: Annotated[str, Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=128)]
    value: Text = ""

    def __post_init__(self) -> None:
        if self.name in RESERVED_ENV:
            raise ValueError(f"{self.name} is set by the operator")


class BrokerContainer(Spec, frozen=True, omit_defaults=True):
    name: Literal["broker"]
    env: Annotated[tuple[Variable, ...], Meta(max_length=64)] = ()

    def __post_init__(self) -> None:
        if len({variable.name for variable in self.env}) < len(self.env):
            raise ValueError("env: each variable needs a name of its own")


class PodSpec(Spec, frozen=True, omit_defaults=True):
    node_selector: Annotated[dict[str, Annotated[str, Meta(max_length=63)]], Meta(max_length=64)] = field(
        default_factory=dict
    )
    tolerations: Annotated[tuple[Toleration, ...], Meta(max_length=64)] = ()
    affinity: Affinity | None = None
    topology_spread_constraints: Annotated[tuple[SpreadConstraint, ...], Meta(max_length=16)] = ()
    image_pull_secrets: Annotated[tuple[PullSecret, ...], Meta(max_length=16)] = ()
    priority_class_name: Annotated[str, Meta(min_length=1, max_length=253)] | None = None
    termination_grace_period_seconds: Annotated[int, Meta(ge=1, le=86400)] | None = None
    containers: Annotated[tuple[BrokerContainer, ...], Meta(max_length=1)] = ()

    def __post_init__(self) -> None:
        if self.priority_class_name is not None and self.priority_class_name.startswith("system-"):
            raise ValueError("priorityClassName: the classes system-… belong to Kubernetes")


class PodTemplate(Spec, frozen=True, omit_defaults=True):
    metadata: TemplateMetadata = field(default_factory=TemplateMetadata)
    spec: PodSpec = field(default_factory=PodSpec)

    def manifest(self) -> dict[str, Any]:
        """What the user wrote, without defaults, to be merged over what the operator builds."""
        found: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(self))
        return found
