"""Rules for a BatchLoad's output on Kubernetes that the schema cannot express; pure."""

from __future__ import annotations

from ...models import BatchLoad
from ...models.conditions import Reason
from ...models.problem import Problem

# Folders of the container that a volume must not hide.
SYSTEM_FOLDERS = {
    "bin",
    "boot",
    "dev",
    "etc",
    "home",
    "lib",
    "lib64",
    "opt",
    "proc",
    "root",
    "run",
    "sbin",
    "srv",
}
SYSTEM_FOLDERS |= {"sys", "tmp", "usr", "var"}


def check_output(load: BatchLoad) -> Problem | None:
    """Why an output is not allowed on Kubernetes; None if it is."""
    output = load.spec.output
    if not output.path.startswith("/"):
        return None
    if output.volume_claim_name is None:
        return _invalid(
            f"spec.output.path: {output.path} would be lost with its pod; allowed: a folder on a volume "
            "(name its PersistentVolumeClaim in spec.output.volumeClaimName), or s3a://BUCKET/FOLDER"
        )
    folders = output.path.split("/")[1:]
    if folders[0] in SYSTEM_FOLDERS or ".." in folders or not folders[0]:
        return _invalid(
            f"spec.output.path: {output.path} is not allowed: the volume is mounted at its first folder; "
            "allowed: a folder of its own, as /lake/flights"
        )
    return None


def _invalid(message: str) -> Problem:
    return Problem(Reason.INVALID_SPEC, message)
