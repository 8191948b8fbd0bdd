"""Pod templates: the one model for brokers, ZooKeeper, mirror workers, Spark's drivers and executors.

A user who may create our resources need not be allowed to create pods. So the allowed fields are listed here, and none
of them gives a pod more rights than the operator does: none reaches the host, Secrets, service accounts, images or
the security context, and no label changes which pods the operator's selectors find. The allowed kinds of volumes hold
nobody else's data, and are mounted below /mnt, where they hide nothing. Spark's driver may create pods, so no variable
may load code into it or into its executors, whose results it reads. docs/security.md gives the reason for each.

``tools/definitions.py`` writes the schemas in `crds/` from these records, bounds and rules included; ``admission``
validates templates against these schemas, like all fields. A rule that a type cannot express is a ``Rule``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Generic, Literal, NamedTuple, TypeVar

import msgspec
from msgspec import Meta, field

from .base import Quantity, Spec

RESERVED_DOMAINS = ("kubernetes.io/", "k8s.io/", "millstream.dev/")
"""Keys of labels and annotations that contain one of these are Kubernetes' or the operator's."""
RESERVED_LABELS = frozenset(("controller-revision-hash",))
FREE_LABELS = frozenset(("app.kubernetes.io/part-of", "app.kubernetes.io/version"))
FREE_ANNOTATIONS = "cluster-autoscaler.kubernetes.io/"
CONSUMERS = "consumers"
"""The pods of a ConsumerGroup's workload, whose containers are the user's own (see workload.py)."""
RESERVED_ENV: Mapping[str, frozenset[str]] = {
    "broker": frozenset(("HOST_IP", "NODE_NAME", "POD_INDEX", "POD_IP")),
    "zookeeper": frozenset(
        (
            *(
                "JAVA_TOOL_OPTIONS",
                "JMXDISABLE",
                "ZK_SERVER_HEAP",
                "ZOO_4LW_COMMANDS_WHITELIST",
                "ZOO_ADMINSERVER_ENABLED",
            ),
            *("ZOO_AUTOPURGE_PURGEINTERVAL", "ZOO_CFG_EXTRA", "ZOO_MAX_CLIENT_CNXNS", "ZOO_MY_ID"),
            "ZOO_SERVERS",
        )
    ),
    "mirror": frozenset(("MILLSTREAM_MIRROR_CREATED", "MILLSTREAM_MIRROR_UID")),
    CONSUMERS: frozenset(
        ("MILLSTREAM_BOOTSTRAP_SERVERS", "MILLSTREAM_GROUP_ID", "MILLSTREAM_TOPICS"),
    ),
}
"""By container, the environment variables that the operator sets."""
ALLOWED_ENV = (
    *("AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_REGION"),
    *("LANG", "LC_ALL", "MALLOC_ARENA_MAX", "TZ"),
)
"""The environment variables allowed for Spark's driver and executors: none of them loads code."""
SPARK = ("driver", "executor")
RESERVED_VOLUMES = frozenset(("conf", "config", "data", "output", "run", "tmp", "work"))
"""Names of the volumes that the operator mounts."""


class Rule(NamedTuple):
    """A rule of a record's schema, in CEL; ``where`` is the field it applies to, empty for the record itself."""

    where: str
    rule: str
    message: str


def _text(most: int, pattern: str | None = None, least: int | None = None) -> Meta:
    return Meta(max_length=most, pattern=pattern, min_length=least)


def _about(description: str) -> Meta:
    return Meta(description=description)


Key = Annotated[str, _text(317)]
LabelValue = Annotated[str, _text(63, r"^([a-zA-Z0-9]([-a-zA-Z0-9_.]*[a-zA-Z0-9])?)?$")]
Text = Annotated[str, _text(4096)]
Count = Annotated[int, Meta(ge=1, le=2**31 - 1)]
NameT = TypeVar("NameT", bound=str)


class Resources(Spec, frozen=True):
    """Resources of a container; each component's record has its defaults."""

    requests: dict[str, Quantity] = field(default_factory=dict)
    limits: dict[str, Quantity] = field(default_factory=dict)


class TemplateMetadata(Spec, frozen=True, omit_defaults=True):
    labels: Annotated[
        dict[str, LabelValue],
        Meta(max_length=64),
        _about("Labels by key. Keys that belong to Kubernetes or to the operator are refused."),
    ] = field(default_factory=dict)
    annotations: Annotated[
        dict[str, Text],
        Meta(max_length=64),
        _about("Annotations by key. Keys that belong to Kubernetes or to the operator are refused."),
    ] = field(default_factory=dict)

    @staticmethod
    def rules(container: str) -> Iterable[Rule]:
        domains = ["/"] if container in SPARK else RESERVED_DOMAINS
        refused = (
            "keys with / are not allowed in Spark's pods, since webhooks that act on them could run code there"
            if container in SPARK
            else "keys of kubernetes.io, k8s.io and millstream.dev are reserved"
        )
        taken = " || ".join(f"key.contains('{domain}')" for domain in domains)
        also = " || ".join(f"key == '{key}'" for key in sorted(RESERVED_LABELS))
        free = ", ".join(f"'{key}'" for key in sorted(FREE_LABELS))
        yield Rule(
            "labels",
            f"self.all(key, key in [{free}] || !({taken} || {also}))",
            f"labels: {refused}, except {' and '.join(sorted(FREE_LABELS))}",
        )
        yield Rule(
            "annotations",
            f"self.all(key, key.startsWith('{FREE_ANNOTATIONS}') || !({taken}))",
            f"annotations: {refused}, except those of {FREE_ANNOTATIONS.rstrip('/')}",
        )


class Toleration(Spec, frozen=True, omit_defaults=True):
    key: Annotated[Key, _about("Key of the taint; default: every key.")] | None = None
    operator: Annotated[Literal["Equal", "Exists"], _about("How the value is compared.")] | None = None
    value: Annotated[str, _text(63), _about("Value of the taint.")] | None = None
    effect: (
        Annotated[
            Literal["NoSchedule", "PreferNoSchedule", "NoExecute"],
            _about("Effect of the taint; default: every effect."),
        ]
        | None
    ) = None
    toleration_seconds: Annotated[int, _about("How long a NoExecute taint is tolerated.")] | None = None


class Affinity(Spec, frozen=True, omit_defaults=True):
    """As in a PodSpec; Kubernetes checks the contents when the operator applies them."""

    node_affinity: Annotated[dict[str, Any], _about("Nodes to run on.")] | None = None
    pod_affinity: Annotated[dict[str, Any], _about("Pods to run beside.")] | None = None
    pod_anti_affinity: Annotated[dict[str, Any], _about("Pods not to run beside.")] | None = None


class SpreadConstraint(Spec, frozen=True, omit_defaults=True):
    max_skew: Annotated[Count, _about("Largest difference between two zones.")]
    topology_key: Annotated[str, _text(317, least=1), _about("Label of the nodes that names their zone.")]
    when_unsatisfiable: Annotated[
        Literal["DoNotSchedule", "ScheduleAnyway"], _about("Whether a pod waits when it cannot be spread.")
    ]
    label_selector: (
        Annotated[dict[str, Any], _about("Pods that count; default: the pods of this template.")] | None
    ) = None
    min_domains: Annotated[Count, _about("Smallest number of zones.")] | None = None
    node_affinity_policy: (
        Annotated[Literal["Honor", "Ignore"], _about("Whether nodes that the pod may not run on count.")]
        | None
    ) = None
    node_taints_policy: (
        Annotated[Literal["Honor", "Ignore"], _about("Whether nodes with taints count.")] | None
    ) = None
    match_label_keys: Annotated[
        tuple[Key, ...], Meta(max_length=16), _about("Labels whose values are taken from the pod itself.")
    ] = ()


class PullSecret(Spec, frozen=True):
    name: Annotated[str, _text(253, least=1), _about("Name of the Secret.")]


class EmptyDir(Spec, frozen=True, omit_defaults=True):
    medium: Annotated[Literal["Memory"], _about("Memory keeps it in the pod's memory.")] | None = None
    size_limit: Annotated[Quantity, _about("Size at which the pod is evicted.")] | None = None


class ConfigMapItem(Spec, frozen=True):
    key: Annotated[str, _text(253, least=1), _about("Key in the ConfigMap.")]
    path: Annotated[str, _text(253, least=1), _about("Name of the file.")]


class ConfigMapVolume(Spec, frozen=True, omit_defaults=True):
    name: Annotated[str, _text(253, least=1), _about("Name of the ConfigMap, in the same namespace.")]
    items: Annotated[
        tuple[ConfigMapItem, ...], Meta(max_length=64), _about("Keys to mount; default: all of them.")
    ] = ()
    optional: Annotated[bool, _about("Whether the pod starts without the ConfigMap.")] | None = None


class Volume(Spec, frozen=True, omit_defaults=True):
    name: Annotated[
        str, _text(63, r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"), _about("Name of the volume, for volumeMounts.")
    ]
    empty_dir: Annotated[EmptyDir, _about("An empty folder, deleted with the pod.")] | None = None
    config_map: Annotated[ConfigMapVolume, _about("The files of a ConfigMap.")] | None = None

    @staticmethod
    def rules(container: str) -> Iterable[Rule]:
        yield Rule(
            "",
            "has(self.emptyDir) != has(self.configMap)",
            "volumes: exactly one of emptyDir and configMap is required; other kinds are not allowed",
        )
        if container == CONSUMERS:
            return
        names = ", ".join(f"'{name}'" for name in sorted(RESERVED_VOLUMES))
        yield Rule(
            "",
            f"!(self.name in [{names}])",
            f"volumes: {', '.join(sorted(RESERVED_VOLUMES))} are the operator's: choose another name",
        )


class VolumeMount(Spec, frozen=True, omit_defaults=True):
    name: Annotated[str, _text(63, least=1), _about("Name of the volume, one of spec.volumes.")]
    mount_path: Annotated[
        str,
        _text(253, r"^/mnt(/[a-zA-Z0-9_-][a-zA-Z0-9._-]*)+$"),
        _about("Folder below /mnt at which the volume is mounted."),
    ]
    read_only: Annotated[bool, _about("Whether the container may not write.")] | None = None


class Variable(Spec, frozen=True):
    name: Annotated[str, _text(128, r"^[A-Za-z_][A-Za-z0-9_]*$"), _about("Name of the variable.")]
    value: Annotated[Text, _about("Value of the variable.")] = ""

    @staticmethod
    def rules(container: str) -> Iterable[Rule]:
        if container in SPARK:
            names = ", ".join(f"'{name}'" for name in ALLOWED_ENV)
            words = f"{', '.join(ALLOWED_ENV[:-1])} and {ALLOWED_ENV[-1]}"
            yield Rule("", f"self.name in [{names}]", f"env: Spark's pods may have {words} only")
        elif taken := sorted(RESERVED_ENV[container]):
            names = ", ".join(f"'{name}'" for name in taken)
            words = f"{', '.join(taken[:-1])} and {taken[-1]}"
            yield Rule("", f"!(self.name in [{names}])", f"env: {words} are set by the operator")


class Container(Spec, Generic[NameT], frozen=True, omit_defaults=True):
    name: Annotated[NameT, _about("Name of the container.")]
    env: Annotated[
        tuple[Variable, ...], Meta(max_length=64), _about("Environment variables, by value only.")
    ] = ()
    volume_mounts: Annotated[
        tuple[VolumeMount, ...], Meta(max_length=16), _about("Where volumes of spec.volumes are mounted.")
    ] = ()


class PodPlacement(Spec, frozen=True, omit_defaults=True):
    """Where pods run, and their volumes."""

    node_selector: Annotated[
        dict[str, Annotated[str, _text(63)]], Meta(max_length=64), _about("Labels that a node must have.")
    ] = field(default_factory=dict)
    tolerations: Annotated[
        tuple[Toleration, ...], Meta(max_length=64), _about("Taints of nodes that the pods tolerate.")
    ] = ()
    affinity: (
        Annotated[
            Affinity,
            _about("Affinities as in a PodSpec. Each of the three that you set replaces the operator's."),
        ]
        | None
    ) = None
    topology_spread_constraints: Annotated[
        tuple[SpreadConstraint, ...], Meta(max_length=16), _about("Spread of the pods over zones or nodes.")
    ] = ()
    image_pull_secrets: Annotated[
        tuple[PullSecret, ...],
        Meta(max_length=16),
        _about("Secrets of the namespace that images are pulled with."),
    ] = ()
    priority_class_name: (
        Annotated[
            str,
            _text(253, least=1),
            _about("Priority class of the pods. Kubernetes' own (system-…) are refused."),
        ]
        | None
    ) = None
    termination_grace_period_seconds: (
        Annotated[
            int, Meta(ge=1, le=86400), _about("Time for a pod to stop before it is killed, in seconds.")
        ]
        | None
    ) = None
    volumes: Annotated[
        tuple[Volume, ...],
        Meta(max_length=16),
        _about("Volumes beside the operator's. Kinds that could give a pod more rights are refused."),
    ] = ()

    @staticmethod
    def rules(container: str) -> Iterable[Rule]:
        yield Rule(
            "priorityClassName",
            "!self.startsWith('system-')",
            "priorityClassName: the classes system-… belong to Kubernetes",
        )
        yield Rule(
            "",
            "!has(self.containers) || "
            "self.containers.all(c, c.volumeMounts.all(m, self.volumes.exists(v, v.name == m.name)))",
            "volumeMounts: a mount must name one of spec.volumes",
        )


class PodSpec(PodPlacement, Generic[NameT], frozen=True, omit_defaults=True):
    containers: Annotated[
        tuple[Container[NameT], ...], Meta(max_length=1), _about("Additions to the main container.")
    ] = ()


class PodTemplate(Spec, Generic[NameT], frozen=True, omit_defaults=True):
    metadata: Annotated[TemplateMetadata, _about("Labels and annotations to add to the pods.")] = field(
        default_factory=TemplateMetadata
    )
    spec: Annotated[
        PodSpec[NameT],
        _about("Where the pods run, and additions to their main container. Other fields are refused."),
    ] = field(default_factory=PodSpec)

    def manifest(self) -> dict[str, Any]:
        """The user's fields, without defaults, to merge over the pods that the operator builds."""
        found: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(self))
        return found


LIST_KEYS: Mapping[str, str] = {
    "containers": "name",
    "env": "name",
    "volumeMounts": "mountPath",
    "volumes": "name",
}
"""Lists whose items have a key field: they merge item by item."""
