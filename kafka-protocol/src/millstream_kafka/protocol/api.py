"""An API of the protocol: a key, a range of versions, a request and a response."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Generic, TypeVar

from .codec import Codec
from .schema import MalformedRequest, Struct

Req = TypeVar("Req", bound=Struct)
Res = TypeVar("Res", bound=Struct)

MAX_ELEMENTS = 200_000
"""Limit of the elements in all arrays of a request together: two bytes may become an object of a hundred."""
FEW_ELEMENTS = 500
"""Elements read in one go; more would hold up the event loop, because one takes about a microsecond."""


class Api(Generic[Req, Res]):
    """Key, name, versions and messages of an API. Bodies only: ``header`` has the headers."""

    __slots__ = (
        "_request",
        "_response",
        "flexible",
        "key",
        "name",
        "request",
        "response",
        "served",
        "versions",
    )

    def __init__(
        self,
        key: int,
        name: str,
        versions: tuple[int, int],
        *,
        flexible: int | None,
        request: type[Req],
        response: type[Res],
        served_from: int | None = None,
        is_advertised: bool = True,
    ) -> None:
        """``versions``: the first and last advertised ones; ``flexible``: the first with KIP-482's encoding, if any.

        ``served_from``: the first version that can be decoded, if that is not the first advertised one.
        ``is_advertised``: False for a client's subset of an API's versions.
        """
        self.key = key
        self.name = name
        self.versions = versions
        self.served = (versions[0] if served_from is None else served_from, versions[1])
        self.flexible = flexible
        self.request = request
        self.response = response
        self._request = Codec(request, flexible, max_elements=MAX_ELEMENTS)
        self._response = Codec(response, flexible)
        if is_advertised:
            APIS[key] = self

    def __repr__(self) -> str:
        return f"Api({self.key} {self.name} {self.versions[0]}-{self.versions[1]})"

    def is_flexible(self, version: int) -> bool:
        return self.flexible is not None and version >= self.flexible

    def has_flexible_response_header(self, version: int) -> bool:
        """Response header v1; never for ApiVersions, whose sender does not know the other side's versions yet."""
        return self.key != 18 and self.is_flexible(version)

    def serves(self, version: int) -> bool:
        return self.served[0] <= version <= self.served[1]

    def decode_request(self, version: int, buf: memoryview | bytes, offset: int = 0) -> Req:
        """Raises MalformedRequest, even for a version that is not served."""
        self._check(version)
        return self._request.decode(version, buf, offset)

    def decode_few(self, version: int, buf: memoryview | bytes, offset: int = 0) -> Req:
        """Like `decode_request`, but raises TooManyElements for more than FEW_ELEMENTS."""
        self._check(version)
        return self._request.decode(version, buf, offset, few=FEW_ELEMENTS)

    def decode_request_in_steps(
        self, version: int, buf: memoryview | bytes, offset: int = 0
    ) -> Generator[None, None, Req]:
        """Like `decode_request`; yields after each element of an array."""
        self._check(version)
        return self._request.decode_in_steps(version, buf, offset)

    def encode_request(self, version: int, request: Req) -> bytes:
        self._check(version)
        return self._request.encode(version, request)

    def encode_request_parts(self, version: int, request: Req) -> list[Any]:
        """Buffers to send in order; records are among them unchanged, without a copy."""
        self._check(version)
        return self._request.encode_parts(version, request)

    def decode_response(self, version: int, buf: memoryview | bytes, offset: int = 0) -> Res:
        self._check(version)
        return self._response.decode(version, buf, offset)

    def encode_response(self, version: int, response: Res) -> bytes:
        self._check(version)
        return self._response.encode(version, response)

    def encode_response_parts(self, version: int, response: Res) -> list[Any]:
        """The response as encoded bytes and, in the places of records, the very objects that were given."""
        self._check(version)
        return self._response.encode_parts(version, response)

    def encode_response_in_steps(self, version: int, response: Res) -> Generator[None, None, list[Any]]:
        """Like `encode_response_parts`; yields after each element of an array."""
        self._check(version)
        return self._response.encode_parts_in_steps(version, response)

    def _check(self, version: int) -> None:
        if not self.served[0] <= version <= self.served[1]:
            raise MalformedRequest(
                f"{self.name} version {version} is not supported: {self.served[0]} to {self.served[1]} are"
            )


APIS: dict[int, Api[Any, Any]] = {}
"""Every API whose module has been imported, by its key."""
