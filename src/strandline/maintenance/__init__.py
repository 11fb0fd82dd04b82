"""Maintenance, which keeps a node small: retention, compaction, purge and the sweeps.

Each verb takes a `Site`, a lease and a port of the lake (`strandline.lake.ports`). It records each decision
as an event before it acts, so that the next process does the same again after a crash.
"""
