"""The cluster that all tests of this directory share."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
from cluster_processes import HOST, Cluster

from intarsia.errors import NotSupported


@pytest.fixture(scope="session")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    pytest.importorskip("pyspark", reason="pyspark is not installed")
    with socket.create_server(("127.0.0.2", 0)):  # speculation wants another host
        pass
    cluster = Cluster(tmp_path_factory.mktemp("cluster"), (HOST, "127.0.0.2"))
    try:
        cluster.start()
        yield cluster
    except NotSupported as error:
        pytest.skip(f"Spark cannot start: {error}")
    finally:
        cluster.stop()


@pytest.fixture
def cluster(started: Cluster) -> Cluster:
    started.make_whole()
    return started
