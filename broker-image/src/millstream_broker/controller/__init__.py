"""The controller of a cluster: elects leaders, places and moves replicas, and updates the brokers.

`machine` decides and is pure: events in, instructions out. `driver` runs it while this broker is the controller: it
feeds it the store's reports and carries out its instructions. A deposed controller's work is dropped.
"""
