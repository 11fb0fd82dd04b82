"""The sink `blob`: rows become objects in a folder or a bucket."""
