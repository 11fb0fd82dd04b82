"""Compaction: small files become large ones."""
