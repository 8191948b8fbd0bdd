"""Spark's configuration for an output: extensions when a session starts, the rest at run time."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable

from pyspark.sql import SparkSession

from millstream_jobs.run import Output, in_s3

EXTENSIONS = {
    "Delta": "io.delta.sql.DeltaSparkSessionExtension",
    "Iceberg": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
}
CATALOG_TIMEOUT_S = 30
"""Time limit for a response of an Iceberg catalog; by default REST waits for ever, and so does PostgreSQL."""
S3A_LIMITS = {
    "connection.timeout": "20s",
    "connection.request.timeout": "20s",
    "connection.part.upload.timeout": "120s",
    "attempts.maximum": "5",
    "retry.limit": "3",
    "retry.interval": "2s",
}
"""How long a store may be unavailable.

Half a minute when it refuses connections, a minute and a half when it accepts requests and does not respond (eight
minutes for a file that it takes in part). S3A's own defaults add up to an hour or more.
"""


def static_conf(formats: Iterable[str]) -> dict[str, str]:
    """The configuration with which the session of these formats starts."""
    extensions = [EXTENSIONS[name] for name in formats if name in EXTENSIONS]
    conf = {"spark.sql.extensions": ",".join(extensions)} if extensions else {}
    if "Delta" in formats:
        conf["spark.sql.catalog.spark_catalog"] = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
    return conf


def catalog_name(output: Output) -> str:
    """The Iceberg catalog's name in the session, where a name stays with its first catalog."""
    identity = f"{output.catalog.type} {output.catalog.uri} {output.catalog.warehouse or output.path}"
    return "millstream_" + hashlib.sha256(identity.encode()).hexdigest()[:8]


def configure(spark: SparkSession, output: Output, *paths: str) -> None:
    """Configure the session for the output, and for other paths that may be in its store."""
    conf = _s3a(output) if any(map(in_s3, (output.path, *paths))) else {}
    if output.format == "Iceberg":
        conf |= _catalog(output)
    if output.target_file_size:
        conf["spark.sql.adaptive.advisoryPartitionSizeInBytes"] = str(output.target_file_size)
    for key, value in conf.items():
        spark.conf.set(key, value)


def _s3a(output: Output) -> dict[str, str]:
    s3 = output.s3
    conf = {
        # Catalogs name their tables' locations s3://BUCKET/FOLDER.
        "fs.s3.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem",
        "fs.s3a.path.style.access": str(s3.path_style).lower(),
        **{f"fs.s3a.{key}": value for key, value in S3A_LIMITS.items()},
    }
    if s3.endpoint:
        conf["fs.s3a.endpoint"] = s3.endpoint
        conf["fs.s3a.connection.ssl.enabled"] = str(s3.endpoint.startswith("https:")).lower()
    if region := s3.region or os.environ.get("AWS_REGION", ""):
        conf["fs.s3a.endpoint.region"] = region
    if "AWS_ACCESS_KEY_ID" in os.environ:
        conf["fs.s3a.aws.credentials.provider"] = (
            "software.amazon.awssdk.auth.credentials.EnvironmentVariableCredentialsProvider"
        )
    return conf


def _catalog(output: Output) -> dict[str, str]:
    catalog, environ = output.catalog, os.environ
    conf = {
        "": "org.apache.iceberg.spark.SparkCatalog",
        ".type": catalog.type.lower(),
        ".warehouse": catalog.warehouse or output.path,
        # S3A, with the output's credentials, for every catalog: Iceberg's own client needs all of the AWS SDK.
        ".io-impl": "org.apache.iceberg.hadoop.HadoopFileIO",
        # Other drivers commit, too: earlier reads may be stale.
        ".cache-enabled": "false",
    }
    if catalog.uri:
        conf[".uri"] = catalog.uri
    if catalog.type == "JDBC":
        conf[".jdbc.schema-version"] = "V1"
        if catalog.uri.startswith("jdbc:postgresql:"):
            conf[".jdbc.socketTimeout"] = str(CATALOG_TIMEOUT_S)
        secrets = {".jdbc.user": "CATALOG_USER", ".jdbc.password": "CATALOG_PASSWORD"}
    else:
        for kind in ("connection", "socket"):
            conf[f".rest.client.{kind}-timeout-ms"] = str(CATALOG_TIMEOUT_S * 1000)
        oauth2 = {".oauth2-server-uri": catalog.oauth2_server_uri, ".scope": catalog.scope}
        conf |= {key: value for key, value in oauth2.items() if value}
        secrets = {".credential": "CATALOG_CREDENTIAL", ".token": "CATALOG_TOKEN"}
    if catalog.type != "Hadoop":
        conf |= {key: environ[name] for key, name in secrets.items() if environ.get(name)}
    return {f"spark.sql.catalog.{catalog_name(output)}{key}": value for key, value in conf.items()}
