"""The controller of a cluster: elects leaders, places and moves replicas, and updates the brokers.

`machine` decides and is pure: events in, instructions out. While this broker is the controller, `driver` runs the
machine: it passes on the store's reports and carries out the instructions. A deposed controller's work is dropped.
"""
