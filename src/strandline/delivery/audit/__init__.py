"""Checks that records, tables and destinations agree: verify, compare, prove."""
