"""The ways in for rows: append, the buffered writer, load, legacy import; and quarantine."""
