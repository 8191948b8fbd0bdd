"""Errors between a client and a broker.

::

    ConnectionError
     └ BrokerError               has .host and .port, and names them
        ├ ConnectFailed          the broker cannot be reached, or does not speak the protocol
        │  └ SecurityFailed      it was reached, but TLS or SASL failed; a retry is pointless before somebody fixes it
        │     ├ CredentialsMissing    a credential of ours is missing or unusable; nothing was sent
        │     ├ TlsFailed             one side refused the other's certificate, or one of them speaks no TLS
        │     └ AuthenticationFailed  one side refused the other's SASL messages
        ├ ConnectionLost         the connection ended before the response came; the request may have been carried out
        ├ RequestTimedOut        no response in time; the request may have been carried out, the connection stays
        ├ UnsupportedApi         the broker and this client have no version of the API in common; nothing was sent
        └ MalformedResponse      the response cannot be read, or is too large; the connection is closed
"""

from __future__ import annotations

from typing import Final

SHOWN: Final = 200


def one_line(text: str) -> str:
    """A broker's text for an error or a log: one line of at most SHOWN printable characters."""
    return "".join(character if character.isprintable() else " " for character in text[:SHOWN])


class BrokerError(ConnectionError):
    def __init__(self, host: str, port: int, problem: str) -> None:
        super().__init__(f"{f'[{host}]' if ':' in host else host}:{port}: {problem}")
        self.host = host
        self.port = port
        self.problem = problem


class ConnectFailed(BrokerError):
    pass


class SecurityFailed(ConnectFailed):
    pass


class CredentialsMissing(SecurityFailed):
    pass


class TlsFailed(SecurityFailed):
    pass


class AuthenticationFailed(SecurityFailed):
    pass


class ConnectionLost(BrokerError):
    pass


class RequestTimedOut(BrokerError):
    pass


class UnsupportedApi(BrokerError):
    pass


class MalformedResponse(BrokerError):
    pass
