"""The audit log of a broker, by its configuration."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from ...config.config import BrokerConfig, Listener
from ...config.config_keys import AUDIT_LOG, AUTHORIZER
from ...config.config_types import ConfigError
from .limits import audit_limits
from .trail import AuditLog, AuditTrail
from .writer import AuditFile, Writer, to_stdout


def audit_trail(config: BrokerConfig, listeners: Iterable[Listener]) -> AuditTrail:
    """Raises ConfigError."""
    value = config[AUDIT_LOG]
    if value is None:
        knows_clients = any(listener.has_sasl or listener.is_encrypted for listener in listeners)
        value = "stdout" if config.text(AUTHORIZER) or knows_clients else "off"
    if value == "off":
        return AuditTrail()
    limits = audit_limits(config.integer("audit.log.max.per.second"))
    writer = Writer(to_stdout) if value == "stdout" else _to_file(str(value), config)
    return AuditTrail(AuditLog(config.integer("broker.id"), limits, writer))


def _to_file(value: str, config: BrokerConfig) -> Writer:
    try:
        file = AuditFile(Path(value), config.integer("audit.log.max.bytes"))
    except OSError as error:
        raise ConfigError(
            f"{AUDIT_LOG}={value}: cannot be opened: {error.strerror}."
            " Name a file in a folder that the broker may write to, stdout, or off.",
            AUDIT_LOG,
        ) from None
    return Writer(file.write, file.close)
