"""A Schema Registry over HTTP in this process, with the parts that a load needs.

Source: docs.confluent.io, "Schema Registry API Reference": `GET /schemas/ids/ID`, `POST /subjects/SUBJECT/versions`,
errors as `{"error_code": …, "message": …}`. Schemas live in memory; equal ones get one id.
"""

from __future__ import annotations

import json
import re
import struct
import threading
import urllib.request
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from types import TracebackType
from typing import Any

import fastavro

CONTENT_TYPE = "application/vnd.schemaregistry.v1+json"


class SchemaRegistry:
    """Serves while entered; ``asked`` counts the requests for each id."""

    def __init__(self, first_id: int = 1) -> None:
        self.asked: Counter[int] = Counter()
        self.fail_with: list[int] = []
        """Statuses of the next responses."""
        self._schemas: dict[int, dict[str, Any]] = {}
        self._next = first_id
        registry = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                found = re.fullmatch(r"/schemas/ids/(\d+)", self.path)
                if registry.fail_with:
                    self.reply(registry.fail_with.pop(0), {"error_code": 50001, "message": "store"})
                elif found is None:
                    self.reply(404, {"error_code": 404, "message": "HTTP 404 Not Found"})
                else:
                    number = int(found[1])
                    registry.asked[number] += 1
                    missing = {"error_code": 40403, "message": f"Schema {number} not found"}
                    schema = registry._schemas.get(number)
                    self.reply(200 if schema else 404, schema or missing)

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                self.reply(200, {"id": registry._register(body)})

            def reply(self, status: int, answer: dict[str, Any]) -> None:
                content = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Type", CONTENT_TYPE)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, format: str, *args: Any) -> None:
                """Log nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def _register(self, body: dict[str, Any]) -> int:
        schema: dict[str, Any] = {
            key: body[key] for key in ("schema", "schemaType", "references") if key in body
        }
        for number, known in self._schemas.items():
            if known == schema:
                return number
        self._schemas[self._next] = schema
        self._next += 1
        return self._next - 1

    def __enter__(self) -> SchemaRegistry:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def register(self, subject: str, schema: dict[str, Any] | str, **more: Any) -> int:
        """The id of a schema, over HTTP as a producer gets it."""
        text = schema if isinstance(schema, str) else json.dumps(schema)
        request = urllib.request.Request(
            f"{self.url}/subjects/{subject}/versions",
            json.dumps({"schema": text, **more}).encode(),
            {"Content-Type": CONTENT_TYPE},
        )
        with urllib.request.urlopen(request, timeout=10) as answer:
            number: int = json.loads(answer.read())["id"]
        return number


def avro(schema: dict[str, Any], record: dict[str, Any]) -> bytes:
    """A record in Avro's binary encoding."""
    out = BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), record)
    return out.getvalue()


def confluent(number: int, payload: bytes) -> bytes:
    """A value in Confluent's wire format."""
    return struct.pack(">bI", 0, number) + payload
