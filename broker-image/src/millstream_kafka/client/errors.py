"""Errors between a client and a broker.

::

    ConnectionError
     └ BrokerError               has .host and .port, and names them
        ├ ConnectFailed          the broker cannot be reached, or does not speak the protocol
        ├ ConnectionLost         the connection ended before the response came; the request may have been carried out
        ├ RequestTimedOut        likewise, but the connection is still there
        ├ UnsupportedApi         the broker and this client have no version of the API in common; nothing was sent
        └ MalformedResponse      the response cannot be read, or is too large; the connection is closed
"""

from __future__ import annotations


class BrokerError(ConnectionError):
    def __init__(self, host: str, port: int, problem: str) -> None:
        super().__init__(f"{host}:{port}: {problem}")
        self.host = host
        self.port = port
        self.problem = problem


class ConnectFailed(BrokerError):
    pass


class ConnectionLost(BrokerError):
    pass


class RequestTimedOut(BrokerError):
    pass


class UnsupportedApi(BrokerError):
    pass


class MalformedResponse(BrokerError):
    pass
