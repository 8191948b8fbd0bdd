"""What the command asks brokers and librdkafka has no request for: transactions and strays.

Only the command uses this package: it needs millstream_kafka, which comes with the extra ``command``.
"""
