"""An S3 server (moto's), with a bucket, users and signatures that are checked."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow.fs

from millstream_harness.environments import python_of

BUCKET = "lake"
REGION = "us-east-1"
# Number of requests allowed without authorization: those that create the user and the bucket.
SET_UP = """
import boto3, json, sys
to = dict(endpoint_url=sys.argv[1], region_name="us-east-1", aws_access_key_id="root", aws_secret_access_key="root")
iam = boto3.client("iam", **to)
iam.create_user(UserName="load")
allowed = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": ["s3:*"], "Resource": ["*"]}]}
iam.put_user_policy(UserName="load", PolicyName="s3", PolicyDocument=json.dumps(allowed))
boto3.client("s3", **to).create_bucket(Bucket=sys.argv[2])
key = iam.create_access_key(UserName="load")["AccessKey"]
print(json.dumps([key["AccessKeyId"], key["SecretAccessKey"]]))
"""
SET_UP_REQUESTS = "4"
# moto looks whether a key is there, and then writes it; S3 does both in one step. So conditional writes take turns,
# each once its content has arrived: a client that stalls holds up no other.
SERVE = """
import io, threading
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from werkzeug.serving import run_simple
moto = DomainDispatcherApplication(create_backend_app)
moto.debug = True
turn = threading.Lock()

def serve(environ, start_response):
    if "HTTP_IF_NONE_MATCH" not in environ:
        return moto(environ, start_response)
    if size := environ.get("CONTENT_LENGTH"):
        environ["wsgi.input"] = io.BytesIO(environ["wsgi.input"].read(int(size)))
    with turn:
        return list(moto(environ, start_response))

run_simple("127.0.0.1", 0, serve, threaded=True, request_handler=MotoRequestHandler)
"""


@dataclass(frozen=True, slots=True)
class S3Server:
    endpoint: str
    access_key: str
    secret_key: str
    pid: int

    @property
    def environment(self) -> dict[str, str]:
        return {
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_REGION": REGION,
        }

    @property
    def filesystem(self) -> pyarrow.fs.S3FileSystem:
        """The file system for pyarrow."""
        return pyarrow.fs.S3FileSystem(
            access_key=self.access_key,
            secret_key=self.secret_key,
            endpoint_override=self.endpoint,
            region=REGION,
        )

    def make_bucket(self, name: str) -> None:
        """Create another bucket."""
        pyarrow.fs.S3FileSystem(
            access_key=self.access_key,
            secret_key=self.secret_key,
            endpoint_override=self.endpoint,
            region=REGION,
            allow_bucket_creation=True,
        ).create_dir(name)

    @property
    def delta_options(self) -> dict[str, str]:
        """The storage options for delta-rs."""
        return {
            **self.environment,
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ALLOW_HTTP": "true",
            "AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "false",
        }

    @property
    def iceberg_options(self) -> dict[str, str]:
        """The properties for pyiceberg."""
        return {
            "s3.endpoint": self.endpoint,
            "s3.access-key-id": self.access_key,
            "s3.secret-access-key": self.secret_key,
            "s3.region": REGION,
        }


@contextlib.contextmanager
def s3_server(log: Path) -> Iterator[S3Server]:
    python = python_of("moto")
    with log.open("wb") as out:
        server = subprocess.Popen(
            [python, "-c", SERVE],
            stdout=out,
            stderr=subprocess.STDOUT,
            env={**os.environ, "INITIAL_NO_AUTH_ACTION_COUNT": SET_UP_REQUESTS, "MOTO_PORT": "0"},
        )
    try:
        while not (found := re.search(r"Running on (http://127\.0\.0\.1:\d+)", log.read_text())):
            assert server.poll() is None, log.read_text()
            time.sleep(0.05)
        endpoint = found[1]
        told = subprocess.run(
            [python, "-c", SET_UP, endpoint, BUCKET], check=True, capture_output=True, text=True
        )
        access_key, secret_key = json.loads(told.stdout)
        yield S3Server(endpoint, access_key, secret_key, server.pid)
    finally:
        server.kill()
        server.wait()
