"""The ground floor: long work in slices of the event loop, counters, and the memory of requests."""
