"""Iceberg's own REST catalog server, over a database and a warehouse in a folder or in S3."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pyspark

from millstream_harness.broker import fixed_port
from millstream_harness.java import ROOT, fetched
from millstream_harness.s3 import S3Server
from millstream_harness.spark import SHORT_LIVED, spark_jars
from millstream_harness.tools import require

REST_JARS = ROOT / ".jars" / "iceberg-rest"
START_S = 60.0


def rest_jars() -> Path:
    """The folder of the server's jars, fetched by Maven the first time."""
    require("java")
    return fetched(REST_JARS)


@contextlib.contextmanager
def rest_catalog(folder: Path, warehouse: str, s3: S3Server | None = None) -> Iterator[str]:
    """The server's URL. ``folder`` gets its database and its log; ``warehouse`` is a path or s3://BUCKET/FOLDER."""
    folder.mkdir(parents=True, exist_ok=True)
    port = fixed_port()
    _write_hadoop_conf(folder / "core-site.xml", s3)
    # The tests' jar of Iceberg contains a class of S3A, which must not come first.
    s3a = spark_jars().glob("hadoop-aws-*.jar")
    classpath = [
        folder,
        *s3a,
        f"{rest_jars()}/*",
        f"{spark_jars()}/*",
        f"{Path(pyspark.__file__).parent}/jars/*",
    ]
    with (folder / "server.log").open("wb") as log:
        server = subprocess.Popen(
            [
                "java",
                *SHORT_LIVED.split(),
                "-cp",
                ":".join(map(str, classpath)),
                "org.apache.iceberg.rest.RESTCatalogServer",
            ],
            cwd=folder,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={
                **os.environ,
                **(s3.environment if s3 else {}),
                "CATALOG_REST_PORT": str(port),
                "CATALOG_URI": f"jdbc:sqlite:{folder / 'catalog.sqlite'}",
                "CATALOG_WAREHOUSE": warehouse,
            },
        )
    try:
        deadline = time.monotonic() + START_S
        while not _listens(port):
            assert server.poll() is None, (folder / "server.log").read_text()
            assert time.monotonic() < deadline, (folder / "server.log").read_text()
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}/"
    finally:
        server.kill()
        server.wait()


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def _write_hadoop_conf(path: Path, s3: S3Server | None) -> None:
    conf = {}
    if s3 is not None:
        conf = {
            "fs.s3.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem",
            "fs.s3a.endpoint": s3.endpoint,
            "fs.s3a.path.style.access": "true",
            "fs.s3a.aws.credentials.provider": (
                "software.amazon.awssdk.auth.credentials.EnvironmentVariableCredentialsProvider"
            ),
        }
    properties = "".join(
        f"<property><name>{key}</name><value>{value}</value></property>" for key, value in conf.items()
    )
    path.write_text(f"<configuration>{properties}</configuration>")
