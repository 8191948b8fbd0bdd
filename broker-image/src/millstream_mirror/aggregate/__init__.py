"""Mode Aggregate: records of many sources in one topic, exactly once."""
