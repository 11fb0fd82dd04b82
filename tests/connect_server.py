"""`connect_server.py <folder> <port>`: a Spark Connect server with a lake, which ends when its input does."""

import sys
from pathlib import Path

from strandline.config.lake_settings import LakeSettings, SparkSettings
from strandline.lake.spark.session import start_spark, stop_spark


def main(folder: Path, port: str) -> None:
    conf = {
        "spark.driver.memory": "1g",
        "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": port,
    }
    lake = LakeSettings(warehouse=str(folder / "warehouse"), uri=str(folder / "catalog.db"))
    session = start_spark(lake, SparkSettings("local[2]", conf=conf, log=str(folder / "server.log")))
    print("ready", flush=True)
    sys.stdin.read()
    stop_spark(session)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
