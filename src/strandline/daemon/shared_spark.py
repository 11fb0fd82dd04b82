"""A Spark that others may use: the daemon's own, which is a Connect server on loopback too, behind a token.

A command then pays for a connection and not for a start of Java. The token is in the environment of the
daemon's Java and in the presence file, which both are the owner's alone.
"""

import os
import secrets
import socket
from typing import Final

import msgspec

from strandline.config.config import Config

_TOKEN: Final = "SPARK_CONNECT_AUTHENTICATE_TOKEN"
_PLUGIN: Final = "org.apache.spark.sql.connect.SparkConnectPlugin"


def shared(config: Config) -> tuple[Config, str | None]:
    """The configuration with which Spark serves others, and where; None where it is somebody else's Spark, or
    has a port or plugins of the user's own."""
    conf = config.spark.conf
    if config.spark.remote is not None or any(key.startswith("spark.connect.") for key in conf):
        return config, None
    port, token = _free_port(), secrets.token_urlsafe(32)
    os.environ[_TOKEN] = token  # Java takes it over when it is started
    plugins = ",".join(filter(None, [str(conf.get("spark.plugins", "")), _PLUGIN]))
    served = {
        **conf,
        "spark.plugins": plugins,
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
    }
    spark = msgspec.structs.replace(config.spark, conf=served)
    return msgspec.structs.replace(config, spark=spark), f"sc://localhost:{port}/;token={token}"


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port
