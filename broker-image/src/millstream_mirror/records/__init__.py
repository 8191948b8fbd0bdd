"""Rules for offsets and batches, fetch sessions and limits; most of them without I/O."""
