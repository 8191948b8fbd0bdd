"""A partition by the name of its topic and its number, as clients name it."""

TopicPartition = tuple[str, int]
