"""Whether a BatchLoad may run on Kubernetes now: it is not paused, and its image and volume are allowed.

Its driver runs with a service account that may create pods, so code chosen by the load's author would have that right.
"""

from __future__ import annotations

import re

from ...models import BatchLoad
from ...models.conditions import Reason
from ...models.problem import PAUSED, Problem, is_paused
from ...resources.images import Images
from ...resources.owned import CLUSTER_LABEL
from ...state.context import LoadParts
from .output import check_output

_OF_A_CLUSTER = re.compile(r"data-.+-\d+")


def check_limits(services: LoadParts, load: BatchLoad) -> Problem | None:
    """Why no run of the load may start on Kubernetes; None if one may."""
    if is_paused(load):
        return Problem(Reason.RECONCILE_PAUSED, f"no run starts: {PAUSED[-1]}")
    return check_output(load) or check_image(load, services.images) or _check_claim(services, load)


def check_image(load: BatchLoad, images: Images) -> Problem | None:
    image = load.spec.spark.image
    if image is None or image == images.spark or any(_fits(image, one) for one in images.spark_allowed):
        return None
    allowed = ", ".join((images.spark, *images.spark_allowed))
    return _invalid(
        f"spec.spark.image: {image} is not allowed; allowed: {allowed}. "
        "Its code would have the driver's rights: ask the operator's administrator to add it (operator.sparkImages)"
    )


def _fits(image: str, allowed: str) -> bool:
    """Whether an entry matches an image; an entry that ends with * matches all images with that prefix."""
    return image.startswith(allowed[:-1]) if allowed.endswith("*") else image == allowed


def _check_claim(services: LoadParts, load: BatchLoad) -> Problem | None:
    name = load.spec.output.volume_claim_name
    claim = services.kube.get("v1", "PersistentVolumeClaim", load.namespace, name) if name else None
    if name and claim is None and _OF_A_CLUSTER.fullmatch(name):
        return _invalid(
            f"spec.output.volumeClaimName: {name} is not allowed: a Cluster names its volumes so, and may make this "
            "one later; choose another PersistentVolumeClaim"
        )
    cluster = ((claim or {}).get("metadata", {}).get("labels") or {}).get(CLUSTER_LABEL)
    if cluster is None:
        return None
    return _invalid(
        f"spec.output.volumeClaimName: {name} is not allowed: it is a volume of Cluster {cluster}; "
        "choose another PersistentVolumeClaim"
    )


def _invalid(message: str) -> Problem:
    return Problem(Reason.INVALID_SPEC, message)
