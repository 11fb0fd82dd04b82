"""The state of a node: its streams of events as values, and their folds: numbered, landed, delivered rows."""
