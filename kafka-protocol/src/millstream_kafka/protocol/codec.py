"""Reads and writes a struct in any of its versions, with functions that are compiled when a version is first used.

A message with many elements is read and written in steps: by a generator that yields after each element of an array,
and returns the result.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Generic, TypeVar

from .decoder import compile_decoder
from .encoder import compile_encoder
from .schema import NEWEST, Struct

S = TypeVar("S", bound=Struct)

_JOIN_BELOW = 4096
_JOINED_AT_ONCE = 1000


class Codec(Generic[S]):
    """Reads and writes one struct in any of its versions; ``flexible`` is the first version with KIP-482's forms.

    With ``max_elements``, a message that has more elements in all its arrays together is malformed.
    """

    __slots__ = ("_functions", "flexible", "max_elements", "struct")

    def __init__(
        self, struct: type[S], flexible: int | None = None, *, max_elements: int | None = None
    ) -> None:
        self.struct = struct
        self.max_elements = max_elements
        self.flexible = NEWEST + 1 if flexible is None else flexible
        self._functions: dict[tuple[int, int | str | None], Any] = {}
        """Functions by version and purpose; decoders also by their limit of elements."""

    def decode(self, version: int, buf: memoryview | bytes, offset: int = 0, *, few: int | None = None) -> S:
        """Read the struct that fills ``buf`` from ``offset`` to its end; raises MalformedRequest.

        TooManyElements if it has more than ``few``, by default ``max_elements``.
        """
        most = self.max_elements if few is None else few
        decoder = self._functions.get((version, most))
        if decoder is None:
            decoder = compile_decoder(self.struct, version, version >= self.flexible, most)
            self._functions[version, most] = decoder
        value: S = decoder(memoryview(buf), offset)
        return value

    def decode_in_steps(
        self, version: int, buf: memoryview | bytes, offset: int = 0
    ) -> Generator[None, None, S]:
        """Like `decode`."""
        decoder = self._functions.get((version, "decode in steps"))
        if decoder is None:
            flexible = version >= self.flexible
            decoder = compile_decoder(self.struct, version, flexible, self.max_elements, in_steps=True)
            self._functions[version, "decode in steps"] = decoder
        value: S = yield from decoder(memoryview(buf), offset)
        return value

    def encode(self, version: int, value: S) -> bytes:
        """Write the struct; raises EncodeError."""
        parts: list[Any] = []
        self._encoder(version)(value, parts)
        return b"".join(parts)

    def encode_parts(self, version: int, value: S) -> list[Any]:
        """Write the struct as buffers to send in order.

        Records are passed on as they were given (bytes, a memoryview or another ``Sized``), so that no byte of them is
        copied; everything between them is joined.
        """
        parts: list[Any] = []
        self._encoder(version)(value, parts)
        return _joined(parts)

    def encode_parts_in_steps(self, version: int, value: S) -> Generator[None, None, list[Any]]:
        """Like `encode_parts`."""
        encoder = self._functions.get((version, "encode in steps"))
        if encoder is None:
            encoder = compile_encoder(self.struct, version, version >= self.flexible, in_steps=True)
            self._functions[version, "encode in steps"] = encoder
        steps: Any = encoder
        parts: list[Any] = []
        yield from steps(value, parts)
        joined: list[Any] = []
        for start in range(0, len(parts), _JOINED_AT_ONCE):
            joined += _joined(parts[start : start + _JOINED_AT_ONCE])
            yield
        return joined

    def _encoder(self, version: int) -> Any:
        encoder = self._functions.get((version, "encode"))
        if encoder is None:
            encoder = compile_encoder(self.struct, version, version >= self.flexible)
            self._functions[version, "encode"] = encoder
        return encoder


def _joined(parts: list[Any]) -> list[Any]:
    """Join all parts but long buffers and objects that are not bytes."""
    joined: list[Any] = []
    head: list[bytes] = []
    for part in parts:
        if type(part) is bytes and len(part) < _JOIN_BELOW:
            head.append(part)
            continue
        if head:
            joined.append(b"".join(head))
            head = []
        if len(part):
            joined.append(part)
    if head:
        joined.append(b"".join(head))
    return joined
