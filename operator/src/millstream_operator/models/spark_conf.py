"""Which of Spark's configuration a BatchLoad may set.

The driver runs with a service account that may create pods in its namespace. So a key is allowed only when it can
neither change what pods Spark makes (images, volumes, Secrets, service accounts, templates) nor load code into the
driver. The output's file system is configured by Hadoop's keys fs.*; its other keys are not allowed, since some of them
name programs to run.
"""

from __future__ import annotations

from collections.abc import Iterable

ALLOWED_CONF = (
    "spark.default.parallelism",
    "spark.driver.maxResultSize",
    "spark.driver.memoryOverhead",
    "spark.driver.memoryOverheadFactor",
    "spark.dynamicAllocation.",
    "spark.eventLog.",
    "spark.executor.heartbeatInterval",
    "spark.executor.memoryOverhead",
    "spark.executor.memoryOverheadFactor",
    "spark.hadoop.fs.",
    "spark.io.",
    "spark.kafka.consumer.",
    "spark.kubernetes.driver.limit.cores",
    "spark.kubernetes.driver.request.cores",
    "spark.kubernetes.executor.limit.cores",
    "spark.kubernetes.executor.node.selector.",
    "spark.kubernetes.executor.request.cores",
    "spark.kubernetes.memoryOverheadFactor",
    "spark.locality.wait",
    "spark.log.level",
    "spark.memory.",
    "spark.network.",
    "spark.reducer.",
    "spark.shuffle.",
    "spark.speculation",
    "spark.speculation.",
    "spark.sql.adaptive.",
    "spark.sql.ansi.",
    "spark.sql.files.",
    "spark.sql.json.",
    "spark.sql.legacy.",
    "spark.sql.parquet.",
    "spark.sql.session.",
    "spark.sql.shuffle.",
    "spark.sql.sources.",
    "spark.stage.",
    "spark.task.",
    "spark.ui.enabled",
)
"""Keys; one that ends with a dot stands for all that begin so."""


def refused(keys: Iterable[str]) -> list[str]:
    """The keys that are not allowed, sorted."""
    prefixes = tuple(name for name in ALLOWED_CONF if name.endswith("."))
    return sorted(key for key in keys if key not in ALLOWED_CONF and not key.startswith(prefixes))
