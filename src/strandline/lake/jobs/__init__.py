"""The Spark jobs. A job implements the port of the same name."""
