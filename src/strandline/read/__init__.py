"""Reads: tokens, how far a reader may go, and scans within those bounds."""
