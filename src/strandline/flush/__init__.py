"""The flush: pending rows land in the tables, each exactly once."""
