"""The sink `forward`: rows go to another node over HTTP."""
