"""The output of a BatchLoad: its part of RUN.json, and the credentials with which its pods reach it."""

from __future__ import annotations

from typing import Any

import msgspec

from ..models import BatchLoad
from ..models.quantity import parse_quantity

Manifest = dict[str, Any]
# Keys of Secrets. The chart's admission policies let pods have these from Secrets, and no others.
S3_CREDENTIALS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
CATALOG_CREDENTIALS = ("CATALOG_USER", "CATALOG_PASSWORD", "CATALOG_CREDENTIAL", "CATALOG_TOKEN")
REQUIRED = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")


def output_of(load: BatchLoad, path: str) -> Manifest:
    """RUN.json's output, without unset fields and its mode."""
    output = load.spec.output
    found: Manifest = {
        "format": output.format,
        "path": path,
        "partitionBy": list(output.partition_by),
        "owner": f"{load.namespace}/{load.name}",
    }
    if output.target_file_size is not None:
        found["targetFileSize"] = int(parse_quantity(output.target_file_size))
    if output.table is not None:
        found["table"] = output.table
    for name, part in (("s3", output.s3), ("catalog", output.catalog)):
        if part is not None:
            given = msgspec.to_builtins(part)
            found[name] = {
                key: value for key, value in given.items() if value is not None and key != "credentialsSecret"
            }
    return found


def credentials(load: BatchLoad) -> list[Manifest]:
    """Environment of driver and executors: keys of the Secrets that the output names, under their own names."""
    output = load.spec.output
    secrets = [
        (output.s3.credentials_secret if output.s3 else None, S3_CREDENTIALS),
        (output.catalog.credentials_secret if output.catalog else None, CATALOG_CREDENTIALS),
    ]
    return [
        {
            "name": key,
            "valueFrom": {"secretKeyRef": {"name": secret, "key": key, "optional": key not in REQUIRED}},
        }
        for secret, keys in secrets
        if secret is not None
        for key in keys
    ]
