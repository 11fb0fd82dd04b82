"""The commit: how it is prepared, decided, grouped and stored."""
