"""The topic setting ``millstream.topic.owner``: the Topic resource that keeps the topic as its spec says.

    NAMESPACE/NAME   the resource
    (empty)          no Topic resource is known

The operator and `millstream local` set it, so that whoever changes the topic by hand learns who would change it back.
It lasts as long as the topic. It decides nothing: brokers only keep it, mirrors do not copy it, and DescribeConfigs
calls it read-only, so that Apache Kafka's MirrorMaker 2 does not copy it either.
"""

from __future__ import annotations

import re

KEY = "millstream.topic.owner"
FORM = "NAMESPACE/NAME of a Topic resource"
OWNER = re.compile(r"[a-z0-9.-]{1,253}/[a-z0-9.-]{1,253}")
