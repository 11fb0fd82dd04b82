"""Retention: old rows are deleted after every sink that must have them has them."""
