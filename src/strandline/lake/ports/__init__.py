"""Requests that higher rooms may make of tables, as protocols and plain values, without Spark."""
