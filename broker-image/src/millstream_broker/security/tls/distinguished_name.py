"""The subject of a certificate as Java prints it (X500Principal.getName, RFC 2253), which principals are made of.

The last relative name comes first. Nine attribute types have names; others are OIDs, with the hex of their DER value:

    1.2.840.113549.1.9.1=#160d616c6963654078...,CN=alice,OU=Sales,O=Example
"""

from __future__ import annotations

from collections.abc import Iterator

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

_NAMES = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.1": "UID",
    "0.9.2342.19200300.100.1.25": "DC",
}
_STRINGS = frozenset({12, 19, 20, 22, 27, 30})
"""DER tags of the strings that Java prints as text: as UTF-8, whatever their encoding."""
_ESCAPED = frozenset(',=+<>#;"\\')
_VERSION = 0xA0

Der = tuple[int, bytes, bytes]
"""A DER value: its tag, its content, and all of its bytes."""


def subject(certificate: x509.Certificate) -> str:
    """Raises ValueError for a certificate that is not DER."""
    ((_, whole, _),) = _values(certificate.public_bytes(Encoding.DER))
    (_, signed, _), *_ = _values(whole)
    fields = [field for field in _values(signed) if field[0] != _VERSION]
    return _printed(fields[4][1])  # serial number, algorithm, issuer, validity, subject


def _printed(name: bytes) -> str:
    relative = [
        "+".join(_attribute(attribute) for _, attribute, _ in _values(content))
        for _, content, _ in _values(name)
    ]
    return ",".join(reversed(relative))


def _attribute(attribute: bytes) -> str:
    (_, oid, _), (tag, content, whole) = _values(attribute)
    number = _dotted(oid)
    name = _NAMES.get(number)
    if name is None or tag not in _STRINGS:
        return f"{name or number}=#{whole.hex()}"
    return f"{name}={_escaped(content.decode(errors='replace'))}"


def _escaped(text: str) -> str:
    core = text.strip(" \r")
    if not core:
        return "".join("\\" + each for each in text)
    start = text.index(core)
    middle = "".join("\\00" if each == "\0" else f"\\{each}" if each in _ESCAPED else each for each in core)
    before, after = text[:start], text[start + len(core) :]
    return "".join("\\" + each for each in before) + middle + "".join("\\" + each for each in after)


def _dotted(oid: bytes) -> str:
    """An OID's content (X.690, 8.19)."""
    numbers, number = list[int](), 0
    for byte in oid:
        number = number << 7 | byte & 0x7F
        if not byte & 0x80:
            numbers.append(number)
            number = 0
    first = min(numbers[0] // 40, 2) if numbers else 0
    return ".".join(map(str, (first, numbers[0] - 40 * first, *numbers[1:]))) if numbers else ""


def _values(data: bytes) -> Iterator[Der]:
    """The DER values in `data`, one after the other."""
    position = 0
    while position < len(data):
        if position + 2 > len(data):
            raise ValueError("a DER value is cut off")
        tag, length, begin = data[position], data[position + 1], position + 2
        if length & 0x80:
            size = length & 0x7F
            length, begin = int.from_bytes(data[begin : begin + size], "big"), begin + size
        end = begin + length
        if end > len(data):
            raise ValueError("a DER value is cut off")
        yield tag, data[begin:end], data[position:end]
        position = end
