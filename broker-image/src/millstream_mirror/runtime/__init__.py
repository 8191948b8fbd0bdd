"""The ground floor: long work in slices, and waking tasks that wait."""
