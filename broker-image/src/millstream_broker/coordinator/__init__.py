"""What coordinators share, as in Kafka's coordinator-common: the log of an internal topic stores a state machine.

A coordinator is a state machine without input or output (`state`), whose parts share timers, effects and writes in
flight. The `runtime` runs it on the loop: it reads partitions when this broker leads them (`loader`), appends records
in batches (`writer`), and returns the results to callers. `groups` is the first coordinator.
"""
