"""The controller of a cluster: elects leaders, places replicas, moves them, and tells the brokers.

`machine` decides and is pure: events in, instructions out. `driver` runs it while this broker is the controller:
it feeds it what `store` reports, carries out what it says, and hands a deposed controller's work to nobody.
"""
