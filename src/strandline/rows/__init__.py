"""Rows: datasets and types, validation, Arrow batches, files of rows, the unit on the wire."""
