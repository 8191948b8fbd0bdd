"""Schemas by id, from a server that speaks Confluent's Schema Registry API (`GET /schemas/ids/ID`).

Source: docs.confluent.io, "Schema Registry API Reference"; Karapace and Apicurio's ccompat speak it too.
"""

from __future__ import annotations

import json
import time
from http.client import HTTPException
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from millstream_jobs.failures import JobError

TIMEOUT_S = 10.0
TRIES = 3
NO_SCHEMA = 40403  # the registry's own code in a 404
BETWEEN_TRIES_S = 1.0
ACCEPT = "application/vnd.schemaregistry.v1+json, application/json"


class RegistryError(JobError):
    """The registry cannot be reached; the message is one line with its URL."""


class NotFound(Exception):
    """The registry has no such schema, or none in Avro."""


class Registry:
    """Requests each id once."""

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")
        self._known: dict[int, str] = {}

    def schema(self, number: int) -> str:
        """The Avro schema with that id, as JSON. Raises NotFound, RegistryError."""
        if number not in self._known:
            self._known[number] = self._fetch(number)
        return self._known[number]

    def _fetch(self, number: int) -> str:
        url = f"{self._url}/schemas/ids/{number}"
        answer = self._get(url)
        try:
            found = json.loads(answer)
            schema, kind = found["schema"], found.get("schemaType", "AVRO")
            references = found.get("references")
        except (ValueError, KeyError, TypeError, AttributeError):
            raise self._other_server(url) from None
        if kind != "AVRO" or not isinstance(schema, str):
            raise NotFound(number)
        if references:
            raise RegistryError(
                f"value.schemaRegistry: schema {number} of {self._url} refers to other schemas, which is not"
                " supported: register it whole"
            )
        return schema

    def _get(self, url: str) -> bytes:
        said = ""
        for left in reversed(range(TRIES)):
            try:
                with urlopen(Request(url, headers={"Accept": ACCEPT}), timeout=TIMEOUT_S) as response:
                    content: bytes = response.read()
                    return content
            except HTTPError as error:
                if error.code == 404:
                    raise self._not_found(error, url) from None
                said = f"HTTP status {error.code} {error.reason}"
                if error.code < 500 and error.code != 429:
                    break
            except (OSError, HTTPException) as error:
                said = str(getattr(error, "reason", error)) or type(error).__name__
            if left:
                time.sleep(BETWEEN_TRIES_S)
        raise RegistryError(
            f"value.schemaRegistry.url: {self._url} does not answer: {said} ({url}): check the URL, and that"
            " the registry runs"
        )

    def _not_found(self, error: HTTPError, url: str) -> Exception:
        """The error for a missing schema or, at a wrong server or path, a missing registry."""
        try:
            code = json.loads(error.read())["error_code"]
        except (ValueError, KeyError, TypeError, OSError, HTTPException):
            return self._other_server(url)
        return NotFound(url) if code == NO_SCHEMA else self._other_server(url)

    def _other_server(self, url: str) -> RegistryError:
        return RegistryError(
            f"value.schemaRegistry.url: {self._url} is not allowed:"
            f" {url} does not answer as a Schema Registry does; its API may be below another path"
        )
