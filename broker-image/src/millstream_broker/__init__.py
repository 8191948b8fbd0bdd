"""Millstream's broker: Kafka's wire protocol and disk format on one asyncio loop."""

from millstream_kafka import __version__

__all__ = ["__version__"]
