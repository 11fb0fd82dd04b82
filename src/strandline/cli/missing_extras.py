"""What a command needs that is not installed, and the extra that brings it."""

from importlib.util import find_spec
from typing import Final

_EXTRA_OF: Final = {
    "numpy": "lake",
    "pandas": "lake",
    "pyarrow": "lake",
    "pyiceberg": "lake",
    "pyspark": "lake",
    "py4j": "lake",
    "grpc": "connect",
    "obstore": "objects",
    "psycopg": "postgres",
    "psycopg_pool": "postgres",
    "urllib3": "remote",
    "starlette": "server",
    "uvicorn": "server",
    "httptools": "server",
    "opentelemetry": "observe",
    "prometheus_client": "observe",
}


def remedy_of(error: ImportError) -> tuple[str, str] | None:
    """What is missing and how to get it; None where it is nothing of ours."""
    package = (error.name or "").partition(".")[0]
    if package not in _EXTRA_OF or find_spec(package) is not None:
        return None
    return f"this needs {package}, which is not installed", install(_EXTRA_OF[package])


def install(extra: str) -> str:
    return f'pip install "strandline[{extra}]"'
