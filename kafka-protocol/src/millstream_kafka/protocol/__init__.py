"""Kafka's wire protocol, sans-IO: bytes in, messages out, and back.

    schema      the notation for messages, and ``Codec``, which reads and writes them
    compiler    the functions behind a ``Codec``, generated when first used: by ``decoder`` and ``encoder``
    api         ``Api``: key, name, versions and the two messages of an API
    header      the headers of requests and responses
    errors      Kafka's error codes

and a module for each API, named as Kafka names it.
"""

from .schema import EncodeError, MalformedRequest

__all__ = ["EncodeError", "MalformedRequest"]
