"""Backfill: history from elsewhere, each row once, whatever is committed or spooled already.

The protocol of a source and the kinds that ship are in `strandline.sources`.
"""
