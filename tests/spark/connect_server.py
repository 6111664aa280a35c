"""A Spark Connect server on loopback, in a process of its own; ends when its standard input does."""

from __future__ import annotations

import sys

from intarsia.spark import local_session


def main(port: str) -> None:
    local_session(
        "connect server",
        master="local[2]",
        config={
            "spark.driver.memory": "1g",
            "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": port,
        },
    )
    print("ready", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(sys.argv[1])
