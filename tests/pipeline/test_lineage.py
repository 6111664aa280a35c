from __future__ import annotations

import http.server
import json
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from computed_shop import COMPUTED, prepare
from openlineage.client import event_v2

from intarsia import pipeline
from intarsia.errors import InputError, NotSupported
from intarsia.pipeline.lineage import emitter
from intarsia.pipeline.lineage.emitter import LineageSender
from intarsia.pipeline.lineage.events import DatasetName, name_dataset, name_stream

LINEAGE = '[lineage]\nfile = "events/lineage.ndjson"\nnamespace = "shops"\n'


@pytest.fixture(autouse=True)
def unconfigured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No variable or file of OpenLineage on this machine counts."""
    for name in ("OPENLINEAGE_URL", "OPENLINEAGE_CONFIG", "OPENLINEAGE_DISABLED", "OPENLINEAGE_PARENT_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)


def _ask_for(text: str, lineage: str) -> str:
    return text.replace("[sources", f"{lineage}\n[sources", 1)


@pytest.fixture
def computed(shop: Any) -> Any:
    return prepare(shop, _ask_for(COMPUTED, LINEAGE))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, make_shop: Any) -> Any:
    """A shop whose pipeline has run once, and its report."""
    shop = prepare(make_shop(tmp_path_factory.mktemp("finished")), _ask_for(COMPUTED, LINEAGE))
    return shop, shop.run().check()


def _read(shop: Any) -> list[dict[str, Any]]:
    """The events, each of them read back by the client's own classes."""
    found = []
    for line in (shop.root / "events" / "lineage.ndjson").read_text().splitlines():
        plain = json.loads(line)
        assert event_v2.RunState[plain["eventType"]]
        event_v2.RunEvent(
            eventTime=plain["eventTime"],
            eventType=event_v2.RunState[plain["eventType"]],
            run=event_v2.Run(plain["run"]["runId"]),
            job=event_v2.Job(plain["job"]["namespace"], plain["job"]["name"]),
        )
        found.append(plain)
    return found


def _find(events: list[dict[str, Any]], name: str, state: str = "COMPLETE") -> dict[str, Any]:
    (event,) = [one for one in events if one["job"]["name"] == name and one["eventType"] == state]
    return event


def _names(datasets: list[dict[str, Any]]) -> set[tuple[str, str]]:
    return {(dataset["namespace"], dataset["name"]) for dataset in datasets}


def test_each_step_starts_and_completes_within_its_run(finished: Any) -> None:
    computed, _ = finished
    events = _read(computed)
    steps = ["landing is sound", "upsert", "purge", "totals", "large ones", "orders are sound"]
    assert [(event["eventType"], event["job"]["name"]) for event in events] == [
        ("START", "shop"),
        *((state, f"shop.{step}") for step in steps for state in ("START", "COMPLETE")),
        ("COMPLETE", "shop"),
    ]
    assert {event["job"]["namespace"] for event in events} == {"shops"}
    run_id = events[0]["run"]["runId"]
    assert uuid.UUID(run_id)
    for start, end in zip(events[1:-1:2], events[2:-1:2], strict=True):
        assert start["run"]["runId"] == end["run"]["runId"] != run_id
        assert start["eventTime"] <= end["eventTime"]
        parent = end["run"]["facets"]["parent"]
        assert parent["run"]["runId"] == run_id
        assert (parent["job"]["namespace"], parent["job"]["name"]) == ("shops", "shop")
    assert len({event["run"]["runId"] for event in events}) == 7


def test_events_name_what_was_read_and_written_with_rows_and_bytes(finished: Any) -> None:
    computed, report = finished
    event = _find(_read(computed), "shop.upsert")
    (read,), (written,) = event["inputs"], event["outputs"]
    assert (read["namespace"], read["name"]) == ("file", str(computed.root / "landing"))
    size = (computed.root / "landing" / "a.csv").stat().st_size
    told = read["inputFacets"]["inputStatistics"]
    assert (told["rowCount"], told["size"], told["fileCount"]) == (10, size, 1)
    declared = [(one["name"], one["type"]) for one in read["facets"]["schema"]["fields"]]
    assert declared == [("id", "bigint"), ("region", "varchar"), ("amount", "double")]
    assert (written["namespace"], written["name"]) == ("file", str(computed.root / "lake" / "orders"))
    told = written["outputFacets"]["outputStatistics"]
    step = report.step("upsert")
    assert (told["rowCount"], told["size"], told["fileCount"]) == (10, step.bytes_written, 1)
    there = [(one["name"], one["type"]) for one in written["facets"]["schema"]["fields"]]
    assert there == [("id", "int64"), ("region", "string"), ("amount", "double")]
    assert written["facets"]["lifecycleStateChange"]["lifecycleStateChange"] == "CREATE"
    assert written["facets"]["version"]["datasetVersion"] == str(step.after.version)


def test_a_query_reads_the_files_and_targets_below_it_and_is_told(finished: Any) -> None:
    computed, report = finished
    event = _find(_read(computed), "shop.totals")
    root = computed.root
    assert _names(event["inputs"]) == {
        ("file", str(root / "rates.csv")),
        ("file", str(root / "lake" / "orders")),
    }
    assert event["job"]["facets"]["sql"]["query"].startswith("select region, sum(amount)")
    assert event["job"]["facets"]["sql"]["dialect"] == "duckdb"
    (orders,) = [one for one in event["inputs"] if one["name"].endswith("orders")]
    assert orders["inputFacets"]["inputStatistics"]["rowCount"] == report.step("purge").after.rows == 8


def test_expectations_are_assertions_on_what_they_check(finished: Any) -> None:
    computed, _ = finished
    (checked,) = _find(_read(computed), "shop.landing is sound")["inputs"]
    (assertion,) = checked["inputFacets"]["dataQualityAssertions"]["assertions"]
    assert (assertion["assertion"], assertion["column"], assertion["success"]) == ("unique", "id", True)
    assert assertion["severity"] == "error"
    assert checked["inputFacets"]["dataQualityMetrics"]["rowCount"] == 10


def test_no_credentials_of_queries_and_expectations_are_in_events_and_reports(shop: Any) -> None:
    query = (
        "[sources.more]\nsql = \"select *, 's3://me:hunter2@host/x?token=hunter2' as place from landing\"\n"
    )
    text = (
        shop.file.read_text().replace('"arrow"', '"duckdb"').replace('source = "landing"', 'source = "more"')
    )
    check = "holds = \"place <> 's3://me:hunter2@host'\"\n"
    text += f'[[steps]]\noperation = "expect"\ntarget = "orders"\n{check}'
    shop.declare(_ask_for(text, f"{LINEAGE}\n{query}"))
    shop.lands("a.csv", {1: ("eu", 1.0)})
    shop.run().check()
    places = [*(shop.root / "reports").iterdir(), shop.root / "events" / "lineage.ndjson"]
    assert len(places) == 4
    assert not [place.name for place in places if "hunter2" in place.read_text()]


def test_a_failed_step_fails_its_run_with_the_error(computed: Any) -> None:
    computed.lands("b.csv", {1: ("eu", 1.0)})
    assert not computed.run().ok
    events = _read(computed)
    assert [(event["eventType"], event["job"]["name"]) for event in events] == [
        ("START", "shop"),
        ("START", "shop.landing is sound"),
        ("FAIL", "shop.landing is sound"),
        ("FAIL", "shop"),
    ]
    for event in events[2:]:
        assert "1 expectation does not hold" in event["run"]["facets"]["errorMessage"]["message"]
    (checked,) = events[2]["inputs"]
    assert [one["success"] for one in checked["inputFacets"]["dataQualityAssertions"]["assertions"]] == [
        False
    ]


def test_an_interrupted_run_is_aborted(computed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("intarsia.pipeline.step_runner.carry_out", interrupt)
    with pytest.raises(KeyboardInterrupt):
        computed.run()
    told = [(event["eventType"], event["job"]["name"]) for event in _read(computed)]
    assert told[-2:] == [("ABORT", "shop.landing is sound"), ("ABORT", "shop")]


def test_a_run_with_nothing_to_do_and_a_dry_run_send_nothing(computed: Any) -> None:
    computed.run(dry_run=True).check()
    assert not (computed.root / "events").exists()
    computed.run().check()
    count = len(_read(computed))
    computed.run().check()
    assert len(_read(computed)) == count


def test_without_being_asked_nothing_is_sent_and_the_package_is_not_loaded(shop: Any) -> None:
    shop.lands("a.csv", {1: ("eu", 1.0)})
    code = f"import sys; from intarsia import pipeline; pipeline.run_file({str(shop.file)!r}, progress=False)"
    code += "; sys.exit('openlineage.client' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=shop.root, check=False).returncode == 0


def test_the_run_that_a_scheduler_names_is_the_parent(computed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    above = str(uuid.uuid4())
    monkeypatch.setenv("OPENLINEAGE_PARENT_ID", f"airflow/nightly.shop/{above}")
    computed.run().check()
    events = _read(computed)
    assert events[0]["run"]["facets"]["parent"]["run"]["runId"] == above
    assert _names([events[0]["run"]["facets"]["parent"]["job"]]) == {("airflow", "nightly.shop")}
    assert events[1]["run"]["facets"]["parent"]["root"]["run"]["runId"] == above


# A server


class _Taker(http.server.BaseHTTPRequestHandler):
    taken: list[tuple[str, str | None, dict[str, Any]]]
    status = 201

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.taken.append((self.path, self.headers.get("Authorization"), json.loads(body)))
        self.send_response(self.status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Any]:
    handler = type("Taker", (_Taker,), {"taken": []})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as found:
        thread = threading.Thread(target=found.serve_forever, daemon=True)
        thread.start()
        found.handler = handler
        found.url = f"http://127.0.0.1:{found.server_port}"
        yield found
        found.shutdown()
        thread.join()


@pytest.mark.parametrize("path", ["", "/", "/api/v1/lineage"])
def test_events_go_to_a_server(shop: Any, server: Any, path: str) -> None:
    shop.declare(
        _ask_for(shop.file.read_text(), f'[lineage]\nurl = "{server.url}{path}"\napi_key = "sesame"\n')
    )
    shop.lands("a.csv", {1: ("eu", 1.0)})
    report = shop.run().check()
    assert report.notes == ()
    assert {(where, key) for where, key, _ in server.handler.taken} == {("/api/v1/lineage", "Bearer sesame")}
    states = [(event["eventType"], event["job"]["name"]) for _, _, event in server.handler.taken]
    assert states[0] == ("START", "shop")
    assert states[-1] == ("COMPLETE", "shop")
    assert ("COMPLETE", "shop.upsert") in states
    assert {event["job"]["namespace"] for _, _, event in server.handler.taken} == {"default"}


def test_the_variables_of_openlineage_are_enough(
    shop: Any, server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENLINEAGE_URL", server.url)
    monkeypatch.setenv("OPENLINEAGE_NAMESPACE", "nightly")
    # The client copies what it finds to other variables.
    for name in ("TYPE", "URL"):
        monkeypatch.setenv(f"OPENLINEAGE__TRANSPORT__TRANSPORTS__DEFAULT_HTTP__{name}", "")
        monkeypatch.delenv(f"OPENLINEAGE__TRANSPORT__TRANSPORTS__DEFAULT_HTTP__{name}")
    shop.lands("a.csv", {1: ("eu", 1.0)})
    shop.run().check()
    assert {event["job"]["namespace"] for _, _, event in server.handler.taken} == {"nightly"}
    count = len(server.handler.taken)
    monkeypatch.setenv("OPENLINEAGE_DISABLED", "true")
    shop.lands("b.csv", {2: ("eu", 1.0)})
    shop.run().check()
    assert len(server.handler.taken) == count


def test_the_file_of_openlineage_is_enough(shop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(shop.root)
    events = shop.root / "own.ndjson"
    (shop.root / "openlineage.yml").write_text(
        f"transport:\n  type: file\n  log_file_path: {events}\n  append: true\n"
    )
    shop.lands("a.csv", {1: ("eu", 1.0)})
    shop.run().check()
    assert json.loads(events.read_text().splitlines()[0])["job"]["name"] == "shop"


def test_a_server_that_refuses_is_a_note_in_the_report(shop: Any, server: Any) -> None:
    server.handler.status = 400
    shop.declare(_ask_for(shop.file.read_text(), f'[lineage]\nurl = "{server.url}"\n'))
    shop.lands("a.csv", {1: ("eu", 1.0)})
    report = shop.run().check()
    (note,) = report.notes
    assert "lineage events could not be sent" in note
    assert "400" in note
    assert len(server.handler.taken) == 3  # then it gives up
    assert json.loads(Path(report.json_path).read_text())["notes"] == [note]
    assert "could not be sent" in Path(report.html_path).read_text()


def test_a_server_that_is_not_there_fails_and_delays_nothing(shop: Any) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shop.declare(_ask_for(shop.file.read_text(), f'[lineage]\nurl = "http://me:hunter2@127.0.0.1:{port}"\n'))
    shop.lands("a.csv", {1: ("eu", 1.0)})
    begun = time.perf_counter()
    report = shop.run().check()
    assert time.perf_counter() - begun < 20
    assert "could not be sent" in report.notes[0]
    for path in (report.json_path, report.html_path):
        assert "hunter2" not in Path(path).read_text()


def test_a_server_that_never_answers_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emitter, "PATIENCE", 0.2)
    answer = threading.Event()
    sender = LineageSender(lambda event: answer.wait(30))
    for number in range(3):
        sender.send(number)
    begun = time.perf_counter()
    assert sender.close() == "3 of 3 lineage events could not be sent: there was no answer in time"
    assert time.perf_counter() - begun < 5
    answer.set()


def test_a_file_that_cannot_be_written_is_a_note(computed: Any) -> None:
    (computed.root / "events" / "lineage.ndjson").mkdir(parents=True)
    report = computed.run().check()
    assert "could not be sent" in report.notes[0]


# What is declared


def test_a_file_and_a_url_at_once_are_refused(shop: Any) -> None:
    shop.declare(_ask_for(shop.file.read_text(), '[lineage]\nfile = "a"\nurl = "http://b"\n'))
    with pytest.raises(InputError, match=r"\[lineage\]: events go to a file or to a url"):
        shop.run()


def test_a_url_that_is_none_is_refused_before_anything_runs(shop: Any, unchanged: Any) -> None:
    shop.declare(_ask_for(shop.file.read_text(), '[lineage]\nurl = "nowhere"\n'))
    shop.lands("a.csv", {1: ("eu", 1.0)})
    line = shop.file.read_text().splitlines().index("[lineage]") + 1
    with pytest.raises(InputError, match=rf", line {line}, \[lineage\]: Lineage cannot be sent"):
        shop.run()
    assert not shop.lake.exists()


def test_without_the_package_a_pipeline_that_asks_is_refused(
    shop: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "openlineage.client", None)
    monkeypatch.delitem(sys.modules, "intarsia.pipeline.lineage.events", raising=False)
    shop.declare(_ask_for(shop.file.read_text(), '[lineage]\nfile = "a"\n'))
    shop.lands("a.csv", {1: ("eu", 1.0)})
    with pytest.raises(NotSupported, match=r"intarsia\[lineage\]"):
        shop.run()
    assert not shop.lake.exists()


def test_the_settings_of_a_pipeline_do_not_show_the_key() -> None:
    assert "sesame" not in repr(pipeline.LineageSettings(url="http://host", api_key="sesame"))


@pytest.mark.parametrize(
    ("location", "namespace", "name"),
    [
        ("/data/orders", "file", "/data/orders"),
        ("/data/orders/", "file", "/data/orders"),
        ("file:///data/my%20orders", "file", "/data/my orders"),
        ("/data/landing/*.csv", "file", "/data/landing"),
        ("/data/landing/2025-*/**/*.csv", "file", "/data/landing"),
        ("s3://bucket/lake/orders", "s3://bucket", "lake/orders"),
        ("s3a://bucket/lake/orders/", "s3://bucket", "lake/orders"),
        ("s3://me:hunter2@bucket/lake", "s3://bucket", "lake"),
        ("s3://me:hunt/er2@bucket/lake", "s3://bucket", "lake"),
        ("s3://bucket/lake?region=eu&secret_key=hunter2", "s3://bucket", "lake"),
        ("s3://bucket/lake/part-?.csv?region=eu", "s3://bucket", "lake"),
        ("s3://bucket", "s3://bucket", "/"),
        ("gs://bucket/lake/*.json", "gs://bucket", "lake"),
        ("hdfs://node:8020/lake/orders", "hdfs://node:8020", "/lake/orders"),
        (
            "abfss://box@account.dfs.core.windows.net/lake",
            "abfss://box@account.dfs.core.windows.net",
            "/lake",
        ),
        ("https://me:hunter2@host/a/rates.csv?token=x", "https://host", "/a/rates.csv"),
    ],
)
def test_datasets_are_named_as_the_specification_says(location: str, namespace: str, name: str) -> None:
    assert name_dataset(location) == DatasetName(namespace, name)


def test_streams_are_named_by_their_directory_or_their_topics() -> None:
    kafka = {"kafka.bootstrap.servers": "one:9092,two:9092", "subscribe": "clicks, orders"}
    assert name_stream(pipeline.Stream("kafka", options=kafka)) == (
        DatasetName("kafka://one:9092", "clicks"),
        DatasetName("kafka://one:9092", "orders"),
    )
    assert name_stream(pipeline.Stream("json", path="/data/in")) == (DatasetName("file", "/data/in"),)
    assert name_stream(pipeline.Stream("rate")) == ()


def test_an_iceberg_table_is_named_by_its_location_with_its_name_in_the_catalog(shop: Any) -> None:
    pytest.importorskip("pyiceberg")
    from intarsia.tables.iceberg.catalog import embedded_catalog

    schema = pa.schema([("id", pa.int64()), ("region", pa.string()), ("amount", pa.float64())])
    catalog = embedded_catalog(shop.root / "warehouse")
    catalog.create_namespace("shop")
    catalog.create_table("shop.orders", schema)
    table = 'path = "shop.orders"\nkind = "iceberg"\ncatalog = "./warehouse"'
    text = shop.file.read_text().replace('path = "lake/orders"\npartition_by = "region"', table)
    shop.declare(_ask_for(text, LINEAGE))
    shop.lands("a.csv", {1: ("eu", 1.0)})
    shop.run().check()
    (written,) = _find(_read(shop), "shop.upsert")["outputs"]
    assert (written["namespace"], written["name"]) == (
        "file",
        str(shop.root / "warehouse" / "shop" / "orders"),
    )
    (link,) = written["facets"]["symlinks"]["identifiers"]
    assert (link["namespace"], link["name"]) == (f"file:{shop.root / 'warehouse'}", "shop.orders")
    assert written["outputFacets"]["outputStatistics"]["rowCount"] == 1


@pytest.mark.spark
def test_a_stream_is_told_of_with_the_rows_of_all_its_batches(tmp_path: Path, spark: Any) -> None:
    (tmp_path / "in").mkdir()
    for number in (1, 2):
        (tmp_path / "in" / f"{number}.json").write_text(json.dumps({"id": number, "n": number}))
    stream = pipeline.Stream("json", path=str(tmp_path / "in"), options={"maxFilesPerTrigger": 1})
    declared = pipeline.Pipeline(
        "clicks",
        (pipeline.Merge(name="upsert", source="clicks", target="t", on="id"),),
        {"clicks": pipeline.Source(stream=stream, columns={"id": "bigint", "n": "bigint"})},
        {"t": pipeline.Target(str(tmp_path / "t"))},
        lineage=pipeline.LineageSettings(file=str(tmp_path / "lineage.ndjson")),
        reports=str(tmp_path / "reports"),
    )
    report = pipeline.run(declared, session=spark, progress=False).check()
    events = [json.loads(line) for line in (tmp_path / "lineage.ndjson").read_text().splitlines()]
    assert [event["eventType"] for event in events] == ["START", "START", "COMPLETE", "COMPLETE"]
    done = _find(events, "clicks.upsert")
    assert _names(done["inputs"]) == {("file", str(tmp_path / "in"))}
    assert done["outputs"][0]["outputFacets"]["outputStatistics"]["rowCount"] == 2
    graph = json.loads(Path(report.json_path).read_text())["graph"]
    assert [edge["rows"] for edge in graph["edges"]] == [2]
