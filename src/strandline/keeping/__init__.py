"""Keeping it small: retention, compaction, purge and the sweeps.

Each is a verb over a `Site`, a lease, and what the lake can do (`strandline.lake.upkeep`); all that it
decides is an event before it acts, so that whoever comes after a crash does the same again.
"""
