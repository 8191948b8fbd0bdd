"""Reads and writes a struct in any of its versions, by functions that are compiled when a version is first met."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from .compiler import compile_decoder, compile_encoder
from .schema import NEWEST, Decoder, Encoder, Struct

S = TypeVar("S", bound=Struct)

_JOIN_BELOW = 4096


class Codec(Generic[S]):
    """Reads and writes one struct in any of its versions; ``flexible`` is the first version with KIP-482's forms.

    With ``max_elements``, a message that has more elements in all its arrays together is malformed.
    """

    __slots__ = ("_decoders", "_encoders", "flexible", "max_elements", "struct")

    def __init__(
        self, struct: type[S], flexible: int | None = None, *, max_elements: int | None = None
    ) -> None:
        self.struct = struct
        self.max_elements = max_elements
        self.flexible = NEWEST + 1 if flexible is None else flexible
        self._decoders: dict[int, Decoder] = {}
        self._encoders: dict[int, Encoder] = {}

    def decode(self, version: int, buf: memoryview | bytes, offset: int = 0) -> S:
        """Read the struct that fills ``buf`` from ``offset`` to its end; raises MalformedRequest."""
        decoder = self._decoders.get(version)
        if decoder is None:
            decoder = compile_decoder(self.struct, version, version >= self.flexible, self.max_elements)
            self._decoders[version] = decoder
        value: S = decoder(memoryview(buf), offset)
        return value

    def encode(self, version: int, value: S) -> bytes:
        """Write the struct; raises EncodeError."""
        return b"".join(self._encode(version, value))

    def encode_parts(self, version: int, value: S) -> list[Any]:
        """Write the struct as buffers to be sent one after another.

        Records are handed over as they were given (bytes, a memoryview or a ``Sized`` of some other sort),
        so that no byte of them is copied; all between them is joined.
        """
        parts: list[Any] = []
        head: list[bytes] = []
        for part in self._encode(version, value):
            if type(part) is bytes and len(part) < _JOIN_BELOW:
                head.append(part)
                continue
            if head:
                parts.append(b"".join(head))
                head = []
            if len(part):
                parts.append(part)
        if head:
            parts.append(b"".join(head))
        return parts

    def _encode(self, version: int, value: S) -> list[Any]:
        encoder = self._encoders.get(version)
        if encoder is None:
            encoder = compile_encoder(self.struct, version, version >= self.flexible)
            self._encoders[version] = encoder
        parts: list[Any] = []
        encoder(value, parts)
        return parts
