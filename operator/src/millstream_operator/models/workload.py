"""The pods of a ConsumerGroup's workload: the user's own containers, under the rules of all pods (see pods.py).

The user chooses image, command, arguments and environment. A user who may create ConsumerGroups need not be allowed to
create pods, so the rest is as for every pod of ours: the restricted Pod Security Standard, no service account, no
Secret, nothing of the host, variables by value only, and volumes that hold nobody else's data.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, field

from .base import Quantity, Spec
from .pods import PodPlacement, TemplateMetadata, Text, Variable, VolumeMount

Amounts = Annotated[dict[str, Quantity], Meta(max_length=16)]


class ContainerResources(Spec, frozen=True, omit_defaults=True):
    requests: Annotated[Amounts, Meta(description="Amounts that a node must have free.")] = field(
        default_factory=dict
    )
    limits: Annotated[Amounts, Meta(description="Most that the container may use.")] = field(
        default_factory=dict
    )


class WorkloadContainer(Spec, frozen=True, omit_defaults=True):
    name: Annotated[
        str,
        Meta(max_length=63, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", description="Name of the container."),
    ]
    image: Annotated[str, Meta(min_length=1, max_length=1024, description="Image of the container.")]
    image_pull_policy: (
        Annotated[
            Literal["Always", "IfNotPresent", "Never"],
            Meta(description="When the image is pulled; default: as Kubernetes decides."),
        ]
        | None
    ) = None
    command: Annotated[
        tuple[Text, ...], Meta(max_length=64, description="Program to run; default: the image's.")
    ] = ()
    args: Annotated[tuple[Text, ...], Meta(max_length=256, description="Arguments of the program.")] = ()
    env: Annotated[
        tuple[Variable, ...],
        Meta(
            max_length=64,
            description="Environment variables, by value only. MILLSTREAM_BOOTSTRAP_SERVERS, MILLSTREAM_GROUP_ID and "
            "MILLSTREAM_TOPICS (separated by commas) are there already, and MILLSTREAM_CONFIG, a file of client "
            "properties, if the Cluster requires a login.",
        ),
    ] = ()
    resources: Annotated[ContainerResources, Meta(description="Requests and limits.")] = field(
        default_factory=ContainerResources
    )
    volume_mounts: Annotated[
        tuple[VolumeMount, ...], Meta(max_length=16, description="Where volumes of spec.volumes are mounted.")
    ] = ()


class WorkloadPod(PodPlacement, frozen=True, kw_only=True, omit_defaults=True):
    containers: Annotated[
        tuple[WorkloadContainer, ...],
        Meta(
            min_length=1,
            max_length=8,
            description="Containers; on a laptop, the first one runs as a process.",
        ),
    ]


class WorkloadTemplate(Spec, frozen=True, omit_defaults=True):
    spec: Annotated[WorkloadPod, Meta(description="The pods. Other fields are refused.")]
    metadata: Annotated[TemplateMetadata, Meta(description="Labels and annotations to add to the pods.")] = (
        field(default_factory=TemplateMetadata)
    )

    def manifest(self) -> dict[str, Any]:
        """The user's fields, without defaults."""
        found: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(self))
        return found


class Scaling(Spec, frozen=True):
    max: int
    target_lag: int
    min: int = 1
    stabilization_seconds: int = 300


class Workload(Spec, frozen=True):
    template: WorkloadTemplate
    replicas: int | None = None
    scaling: Scaling | None = None
