"""Millstream's broker: Kafka's wire protocol and disk format on one asyncio loop."""

__version__ = "0.1.0"
