"""An API of the protocol: a key, a range of versions, a request and a response."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Generic, TypeVar

from .codec import Codec
from .schema import MalformedRequest, Struct

Req = TypeVar("Req", bound=Struct)
Res = TypeVar("Res", bound=Struct)

MAX_ELEMENTS = 200_000
"""How many elements the arrays of a request may have together: two bytes may become an object of a hundred."""
FEW_ELEMENTS = 500
"""How many are read in one go, so that the event loop is not held up: reading one takes about a microsecond."""


class Api(Generic[Req, Res]):
    """Key, name, versions and messages of an API. Bodies only: ``header`` has what stands before them."""

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
        """``versions``: the first and last that are advertised; ``flexible``: the first in KIP-482's forms, if any.

        ``served_from``: the first version that can be decoded, where it is not the first advertised.
        ``is_advertised``: False for a client's selection of the versions of an API.
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
        """Response header v1; never for ApiVersions, whose asker does not yet know what the other side speaks."""
        return self.key != 18 and self.is_flexible(version)

    def serves(self, version: int) -> bool:
        return self.served[0] <= version <= self.served[1]

    def decode_request(self, version: int, buf: memoryview | bytes, offset: int = 0) -> Req:
        """Raises MalformedRequest, also for a version that is not served."""
        self._check(version)
        return self._request.decode(version, buf, offset)

    def decode_few(self, version: int, buf: memoryview | bytes, offset: int = 0) -> Req:
        """As `decode_request`, but raises TooManyElements where there are more than FEW_ELEMENTS."""
        self._check(version)
        return self._request.decode(version, buf, offset, few=FEW_ELEMENTS)

    def decode_request_in_steps(
        self, version: int, buf: memoryview | bytes, offset: int = 0
    ) -> Generator[None, None, Req]:
        """As `decode_request`; yields after each element of an array."""
        self._check(version)
        return self._request.decode_in_steps(version, buf, offset)

    def encode_request(self, version: int, request: Req) -> bytes:
        self._check(version)
        return self._request.encode(version, request)

    def encode_request_parts(self, version: int, request: Req) -> list[Any]:
        """Buffers to send in order; records are among them as they were given, uncopied."""
        self._check(version)
        return self._request.encode_parts(version, request)

    def decode_response(self, version: int, buf: memoryview | bytes, offset: int = 0) -> Res:
        self._check(version)
        return self._response.decode(version, buf, offset)

    def encode_response(self, version: int, response: Res) -> bytes:
        self._check(version)
        return self._response.encode(version, response)

    def encode_response_parts(self, version: int, response: Res) -> list[Any]:
        """Encoded bytes and, where records stand in the response, the very objects that were given for them."""
        self._check(version)
        return self._response.encode_parts(version, response)

    def encode_response_in_steps(self, version: int, response: Res) -> Generator[None, None, list[Any]]:
        """As `encode_response_parts`; yields after each element of an array."""
        self._check(version)
        return self._response.encode_parts_in_steps(version, response)

    def _check(self, version: int) -> None:
        if not self.served[0] <= version <= self.served[1]:
            raise MalformedRequest(
                f"{self.name} version {version} is not supported: {self.served[0]} to {self.served[1]} are"
            )


APIS: dict[int, Api[Any, Any]] = {}
"""Every API whose module has been imported, by its key."""
