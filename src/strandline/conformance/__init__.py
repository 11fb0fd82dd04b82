"""Suites that a backend or a sink must pass, and what they need to run: shipped, so that all can run them."""
