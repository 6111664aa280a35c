"""A Spark Connect server on loopback, in a process of its own; ends when its standard input does.

python connect_server.py <port> [<master> <settings as JSON>]
"""

from __future__ import annotations

import json
import sys

from intarsia.spark import open_session


def main(port: str, master: str = "local[2]", settings: str = "{}") -> None:
    open_session(
        master,
        app="connect server",
        config={
            "spark.driver.memory": "1g",
            **json.loads(settings),
            "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": port,
        },
    )
    print("ready", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
