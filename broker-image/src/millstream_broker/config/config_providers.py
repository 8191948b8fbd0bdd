"""References to values stored elsewhere: `${env:NAME}` and `${file:PATH:KEY}` in a configuration (KIP-297, KIP-421,
KIP-887).

    advertised.listeners=EXTERNAL://${env:HOST_IP}:30094
    broker.rack=${file:/etc/millstream/racks.properties:node-1}

They are Kafka's EnvVarConfigProvider and FileConfigProvider, which need not be declared here. A file reference
names a key in a properties file; a missing variable or key is an error that names it, and nothing else of the value,
which may be a password. The value of a reference is not searched for further references.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from .config_types import ConfigError

_REFERENCE = re.compile(r"\$\{(?P<provider>\w+):(?P<what>[^{}]+)\}")


def resolve(
    given: Mapping[str, str], environ: Mapping[str, str], read: Callable[[str], Mapping[str, str]]
) -> dict[str, str]:
    """`given` with every reference replaced; `read` reads a properties file. Raises ConfigError."""

    def value(key: str, reference: re.Match[str]) -> str:
        provider, what = reference["provider"], reference["what"]
        if provider == "env":
            if what not in environ:
                raise ConfigError(f"{key}={reference[0]}: there is no environment variable {what}")
            return environ[what]
        if provider == "file":
            path, colon, name = what.rpartition(":")
            if not colon:
                raise ConfigError(f"{key}={reference[0]}: expected ${{file:PATH:KEY}}")
            try:
                values = read(path)
            except ConfigError as error:
                raise ConfigError(f"{key}={reference[0]}: {error}") from None
            if name not in values:
                raise ConfigError(f"{key}={reference[0]}: {path} has no key {name}")
            return values[name]
        raise ConfigError(
            f"{key}={reference[0]}: {provider} is not known: expected ${{env:NAME}} or ${{file:PATH:KEY}}"
        )

    return {
        key: _REFERENCE.sub(lambda found, key=key: value(key, found), text)  # type: ignore[misc]
        for key, text in given.items()
    }
