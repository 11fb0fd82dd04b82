"""What others may watch: spans of what is done, and numbers of how it stands."""
