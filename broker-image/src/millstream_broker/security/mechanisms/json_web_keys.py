"""The public keys of an identity provider (a JWKS, RFC 7517), from a URL or a file, kept and renewed.

A thread reads them, with a time limit and a bound on their size. They are read again when they are older than the
refresh interval, and when a token names a key that is not among them, which also costs a request only now and then: a
client that invents names cannot make the broker send one for each. Keys twice as old as that, because nobody has logged
in meanwhile, decide nothing before they have been read again: the provider may have revoked one. While they cannot be
read, the last ones stay in use, and further attempts follow after a pause that doubles up to a limit.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import logging
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from millstream_process import supervision

from ...config.config_types import ConfigError

MAX_BYTES = 1024 * 1024
TIMEOUT_S = 10.0
LEAST_BETWEEN_S = 10.0
"""Pause between two reads that tokens cause."""
_PRIVATE = {"d", "p", "q", "dp", "dq", "qi", "oth"}
"""Parts of a private key, which is not to be kept, should there be any."""
Jwk = Mapping[str, Any]

log = logging.getLogger(__name__)


class KeysUnavailable(Exception):
    """The keys cannot be read; the message says why."""


def read_keys(url: str, context_of: Callable[[], ssl.SSLContext | None] = lambda: None) -> list[Jwk]:
    """Read a JWKS; `context_of` returns the context of https, None: the system's. Raises KeysUnavailable. Blocks."""
    try:
        if urllib.parse.urlsplit(url).scheme == "file":
            with Path(urllib.request.url2pathname(urllib.parse.urlsplit(url).path)).open("rb") as file:
                data = file.read(MAX_BYTES + 1)
        else:
            end = time.monotonic() + TIMEOUT_S
            with urllib.request.urlopen(url, timeout=TIMEOUT_S, context=context_of()) as response:
                data = b""
                while part := response.read1(64 * 1024):
                    data += part
                    if len(data) > MAX_BYTES or time.monotonic() > end:
                        break
                else:
                    end = float("inf")
                if time.monotonic() > end:
                    raise KeysUnavailable(f"{url}: not read within {TIMEOUT_S:g} s")
        if len(data) > MAX_BYTES:
            raise KeysUnavailable(f"{url}: more than {MAX_BYTES} bytes")
        keys = json.loads(data)["keys"]
    except ConfigError as error:
        raise KeysUnavailable(f"{url}: {error}") from None
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError, RecursionError) as error:
        raise KeysUnavailable(f"{url}: {error or type(error).__name__}") from None
    if not isinstance(keys, list):
        raise KeysUnavailable(f"{url}: has no list of keys")
    public = [key for key in keys if isinstance(key, dict) and key.get("kty") in ("RSA", "EC", "OKP")]
    return [{name: value for name, value in key.items() if name not in _PRIVATE} for key in public]


class JsonWebKeys:
    """The keys at one URL."""

    def __init__(
        self,
        url: str,
        refresh_s: float,
        read: Callable[[str], list[Jwk]] = read_keys,
        *,
        retry_s: float = 0.1,
        longest_retry_s: float = 10.0,
    ) -> None:
        self.url = url
        self._refresh_s = refresh_s
        self._read = read
        self._keys: list[Jwk] = []
        self._retry_s, self._longest_retry_s = retry_s, longest_retry_s
        self._failures = 0
        """Since the last success."""
        self._tried_at = self._read_at = self._due_at = float("-inf")
        self._reading: asyncio.Task[None] | None = None

    async def find(self, key_id: str | None) -> Jwk | None:
        """The key of that id; without an id, the only one."""
        now = time.monotonic()
        is_due = now >= self._due_at
        if is_due and self._keys:
            reading = self._renew()  # meanwhile, the last ones are used
            if now - self._read_at > 2 * self._refresh_s:
                await asyncio.shield(reading)
        found = self._among(key_id)
        may_read = self._reading is not None or now - self._tried_at > LEAST_BETWEEN_S
        if found is None and (may_read or (is_due and not self._keys)):
            await asyncio.shield(self._renew())
            found = self._among(key_id)
        return found

    def _among(self, key_id: str | None) -> Jwk | None:
        if key_id is None:
            return self._keys[0] if len(self._keys) == 1 else None
        return next((key for key in self._keys if key.get("kid") == key_id), None)

    def _renew(self) -> asyncio.Task[None]:
        if self._reading is None:
            self._tried_at = time.monotonic()
            self._reading = supervision.run("reading JSON web keys", self._read_once())
        return self._reading

    async def _read_once(self) -> None:
        try:
            self._keys = await asyncio.to_thread(self._read, self.url)
        except KeysUnavailable as error:
            pause_s = min(self._longest_retry_s, self._retry_s * 2.0 ** min(self._failures, 30))
            self._failures += 1
            self._due_at = time.monotonic() + pause_s
            if self._failures == 1 or pause_s == self._longest_retry_s:
                log.error("cannot read the keys of OAUTHBEARER: %s", error)
        else:
            self._failures = 0
            self._read_at = time.monotonic()
            self._due_at = self._read_at + self._refresh_s
        finally:
            self._reading = None
