from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from browser_pages import DARK, Browser, measure_brightness, measure_page
from click.testing import CliRunner
from computed_shop import COMPUTED, prepare

from intarsia import pipeline
from intarsia.cli.commands import cli
from intarsia.errors import InputError
from intarsia.pipeline.reports.diagram import graph_to_json, make_graph
from intarsia.pipeline.reports.diagram_svg import draw_svg


@pytest.fixture
def computed(shop: Any) -> Any:
    return prepare(shop)


def make_large(nodes: int) -> pipeline.Pipeline:
    """Files merged into tables, joins of these, and a table for each join; some names are very long."""
    third = nodes // 4
    sources = {f"landing_{at}": pipeline.Source(f"landing/area_{at}/*.csv") for at in range(third)}
    targets, steps = {}, []
    for at in range(third):
        name = (
            f"stage_{at}" if at != 1 else "a_name_of_a_table_that_is_far_too_long_but_was_useful_to_somebody"
        )
        targets[name] = pipeline.Target(f"lake/{name}")
        steps.append(pipeline.Merge(name=f"load {name}", source=f"landing_{at}", target=name, on="id"))
        steps.append(pipeline.Expect(name=f"{name} is sound", target=name, unique="id"))
    staged = list(targets)
    for at in range(third):
        read = [staged[(at * step + 1) % third] for step in (1, 3, 7)][: at % 3 + 1]
        sources[f"joined_{at}"] = pipeline.Source(
            sql=f"select * from {' cross join '.join(dict.fromkeys(read))}"
        )
        targets[f"mart_{at}"] = pipeline.Target(f"lake/marts/mart_{at}")
        steps.append(pipeline.Merge(name=f"mart {at}", source=f"joined_{at}", target=f"mart_{at}", on="id"))
    return pipeline.Pipeline("large", tuple(steps), sources, targets, engine="duckdb")


def _edges(plain: dict[str, Any]) -> set[tuple[str, str, str | None]]:
    return {(edge["from"], edge["to"], edge["step"]) for edge in plain["edges"]}


def test_the_graph_has_every_source_target_and_step(computed: Any) -> None:
    plain = json.loads(pipeline.draw(pipeline.load(computed.file), "json"))
    kinds = {node["key"]: node["kind"] for node in plain["nodes"]}
    assert kinds == {
        "source:landing": "files",
        "source:rates": "files",
        "source:converted": "query",
        "source:totals": "query",
        "source:large": "view",
        "target:orders": "target",
        "target:totals_by_region": "target",
        "target:large_orders": "target",
    }
    assert _edges(plain) == {
        ("source:landing", "target:orders", "upsert"),
        ("target:orders", "source:converted", None),
        ("source:rates", "source:converted", None),
        ("source:converted", "source:totals", None),
        ("source:totals", "target:totals_by_region", "totals"),
        ("target:orders", "source:large", None),
        ("source:large", "target:large_orders", "large ones"),
    }
    steps = {step["name"]: (node["key"], step["number"]) for node in plain["nodes"] for step in node["steps"]}
    assert steps == {
        "landing is sound": ("source:landing", 1),
        "upsert": ("target:orders", 2),
        "purge": ("target:orders", 3),
        "totals": ("target:totals_by_region", 4),
        "large ones": ("target:large_orders", 5),
        "orders are sound": ("target:orders", 6),
    }


def test_steps_are_numbered_in_the_order_in_which_they_run(computed: Any) -> None:
    text = COMPUTED.replace("[[steps]]", "\0", 1)
    head, *steps = text.replace("[[steps]]", "\0").split("\0")
    moved = [steps[3], *steps[:3], *steps[4:]]  # the query's step is declared first, and has to wait
    computed.declare(head + "".join(f"[[steps]]{step}" for step in moved))
    plain = json.loads(pipeline.draw(pipeline.load(computed.file), "json"))
    numbers = {step["name"]: step["number"] for node in plain["nodes"] for step in node["steps"]}
    assert [step.name for step in computed.run().steps] == sorted(numbers, key=numbers.__getitem__)


def test_a_run_measures_rows_and_bytes_of_edges(computed: Any) -> None:
    report = computed.run().check()
    plain = json.loads(Path(report.json_path).read_text())["graph"]
    measured = {(edge["from"], edge["to"]): (edge["rows"], edge["bytes"]) for edge in plain["edges"]}
    landed = (computed.root / "landing" / "a.csv").stat().st_size
    rates = (computed.root / "rates.csv").stat().st_size
    kept = report.step("purge").after
    assert measured == {
        ("source:landing", "target:orders"): (10, landed),
        ("source:rates", "source:converted"): (None, rates),
        ("target:orders", "source:converted"): (8, kept.size),
        ("source:converted", "source:totals"): (None, None),
        ("source:totals", "target:totals_by_region"): (2, None),
        ("target:orders", "source:large"): (8, kept.size),
        ("source:large", "target:large_orders"): (2, None),
    }
    rows = {node["key"]: node["rows"] for node in plain["nodes"] if node["kind"] == "target"}
    assert rows == {"target:orders": 8, "target:totals_by_region": 2, "target:large_orders": 2}


def test_what_was_not_read_is_not_measured(computed: Any) -> None:
    computed.run().check()
    report = computed.run()
    plain = json.loads(Path(report.json_path).read_text())["graph"]
    assert {edge["rows"] for edge in plain["edges"]} == {None}
    assert {step["status"] for node in plain["nodes"] for step in node["steps"]} == {"unchanged"}


def test_a_failed_step_and_those_after_it_are_marked_in_the_picture(computed: Any) -> None:
    computed.lands("b.csv", {1: ("eu", 1.0)})  # a key that is there twice
    report = computed.run()
    drawn = re.findall(r'aria-label="(step [^"]*)"', Path(report.html_path).read_text())
    assert [told for told in drawn if "failed" in told] == [
        "step 1, landing is sound: expect, failed, 1 of 1 does not hold"
    ]
    assert sum("not run" in told for told in drawn) == 5


def test_every_step_in_the_picture_leads_to_its_section(computed: Any) -> None:
    page = Path(computed.run().html_path).read_text()
    graph = re.search(r'<section class="graph">.*?</section>', page, re.DOTALL)
    assert graph is not None
    assert sorted(re.findall(r'href="#([^"]*)"', graph[0])) == [f"step-{n}-body" for n in range(1, 7)]
    for number in range(1, 7):
        assert f'id="step-{number}-body"' in page


def test_a_target_that_is_read_and_written_again_is_a_line_that_leads_back() -> None:
    circle = pipeline.Pipeline(
        "circle",
        (
            pipeline.Merge(name="load", source="landing", target="orders", on="id"),
            pipeline.Merge(name="mend", source="wrong", target="orders", on="id"),
        ),
        {
            "landing": pipeline.Source("a.csv"),
            "wrong": pipeline.Source(sql="select * from orders where amount is null"),
        },
        {"orders": pipeline.Target("lake/orders")},
        engine="duckdb",
    )
    assert pipeline.draw(circle).count('class="flow back"') == 1
    tree = pipeline.draw(circle, "text")
    assert tree.count("mend") == 1


def _declare_stream() -> pipeline.Pipeline:
    return pipeline.Pipeline(
        "clicks",
        (
            pipeline.Merge(name="people", source="landing", target="customers", on="id"),
            pipeline.Merge(name="clicks", source="clicks", target="visits", on="id"),
            pipeline.Expect(
                name="customers exist", target="visits", references={"customer_id": "customers.id"}
            ),
        ),
        {
            "landing": pipeline.Source("people.csv"),
            "clicks": pipeline.Source(
                stream=pipeline.Stream(
                    "kafka", options={"subscribe": "clicks", "kafka.bootstrap.servers": "broker:9092"}
                )
            ),
        },
        {"customers": pipeline.Target("lake/customers"), "visits": pipeline.Target("lake/visits")},
    )


def test_streams_and_foreign_keys_are_drawn() -> None:
    plain = json.loads(pipeline.draw(_declare_stream(), "json"))
    assert ("target:customers", "target:visits", "customers exist") in _edges(plain)
    assert {edge["kind"] for edge in plain["edges"]} == {"writes", "checks"}
    (clicks,) = [node for node in plain["nodes"] if node["name"] == "clicks"]
    assert (clicks["kind"], clicks["place"]) == ("stream", "clicks")
    svg = pipeline.draw(_declare_stream(), "svg")
    assert "kafka stream" in svg
    assert "customers → visits: keys for customers exist" in svg
    assert "-.->" in pipeline.draw(_declare_stream(), "mermaid")
    assert pipeline.draw(_declare_stream(), "text").splitlines()[-1] == (
        "└─ 3. customers exist  expect (keys of customers)"
    )


def test_what_is_new_of_a_target_is_told_and_not_measured_as_the_whole(computed: Any) -> None:
    computed.declare(
        COMPUTED.replace('where = "amount > 5"', 'since = "last run"')
        .replace('mode = "overwrite"', "")
        .replace('operation = "write"', 'operation = "merge"\non = "id"')
    )
    plain = json.loads(Path(computed.run().check().json_path).read_text())["graph"]
    told = {(edge["from"], edge["to"]): edge["rows"] for edge in plain["edges"]}
    assert told["target:orders", "source:large"] is None
    assert told["source:large", "target:large_orders"] == 8
    assert "new rows of a target" in pipeline.draw(pipeline.load(computed.file))


GUARDED = """
name = "shop"
engine = "duckdb"
LINEAGE
[sources.landing]
path = "landing/*.csv"
columns = { id = "bigint", region = "varchar", amount = "double" }

[targets.orders]
path = "lake/orders"

[targets.bad_orders]
path = "lake/bad"

[[steps]]
name = "sound"
operation = "expect"
source = "landing"
holds = "amount >= 0"
action = "quarantine"
quarantine = "bad_orders"

[[steps]]
name = "upsert"
operation = "merge"
source = "landing"
target = "orders"
on = "id"
"""


def test_a_quarantine_is_drawn_with_the_rows_that_went_there(shop: Any) -> None:
    shop.declare(GUARDED.replace("LINEAGE", '[lineage]\nfile = "lineage.ndjson"\n'))
    shop.lands("a.csv", {1: ("eu", -1.0), 2: ("eu", 2.0), 3: ("ap", 3.0)})
    plain = json.loads(Path(shop.run().check().json_path).read_text())["graph"]
    told = {(edge["to"], edge["kind"]): (edge["step"], edge["rows"]) for edge in plain["edges"]}
    assert told == {
        ("target:bad_orders", "quarantines"): ("sound", 1),
        ("target:orders", "writes"): ("upsert", 2),
    }
    rows = {node["name"]: node["rows"] for node in plain["nodes"] if node["kind"] == "target"}
    assert rows == {"orders": 2, "bad_orders": 1}
    (landing,) = [node for node in plain["nodes"] if node["name"] == "landing"]
    assert landing["steps"][0]["outcome"] == "1 quarantined"
    svg = pipeline.draw(pipeline.load(shop.file))
    assert 'class="flow quarantines"' in svg
    events = [json.loads(line) for line in (shop.root / "lineage.ndjson").read_text().splitlines()]
    (done,) = [e for e in events if e["eventType"] == "COMPLETE" and e["job"]["name"] == "shop.sound"]
    assert done["inputs"][0]["inputFacets"]["inputStatistics"]["rowCount"] == 3
    assert done["outputs"][0]["name"] == str(shop.root / "lake" / "bad")
    assert done["outputs"][0]["outputFacets"]["outputStatistics"]["rowCount"] == 1


def test_the_picture_is_xml_with_titles_and_is_the_same_each_time(computed: Any) -> None:
    declared = pipeline.load(computed.file)
    svg = pipeline.draw(declared, "svg")
    root = ElementTree.fromstring(svg)
    assert root.attrib["role"] == "group"
    assert root.attrib["aria-label"] == "The graph of pipeline shop: 8 nodes, 7 edges"
    titles = [title.text for title in root.iter("{http://www.w3.org/2000/svg}title")]
    assert "landing → orders" in titles
    assert "step 2, upsert: merge" in titles
    assert svg == pipeline.draw(declared, "svg")
    assert "<a " not in svg  # there is no page to lead to


def test_names_from_outside_cannot_become_part_of_a_picture() -> None:
    evil = "<script>alert('\"')</script>"
    declared = pipeline.Pipeline(
        evil,
        (pipeline.Merge(name=evil, source=evil, target=evil, on="id"),),
        {evil: pipeline.Source(f"{evil}.csv")},
        {evil: pipeline.Target(f"lake/{evil}")},
    )
    for format in ("svg", "mermaid"):
        drawn = pipeline.draw(declared, format)
        assert "<script" not in drawn
    ElementTree.fromstring(pipeline.draw(declared, "svg"))
    assert '"]' not in pipeline.draw(declared, "mermaid").replace('"/]', "").replace('")]', "")


def test_credentials_in_paths_are_not_drawn() -> None:
    declared = pipeline.Pipeline(
        "p",
        (pipeline.Write(source="a", target="b"),),
        {"a": pipeline.Source("s3://me:hunter2@host/bucket/a.csv")},
        {"b": pipeline.Target("s3://me:hunter2@host/bucket/lake")},
    )
    for format in ("svg", "mermaid", "text", "json"):
        assert "hunter2" not in pipeline.draw(declared, format)


def test_the_tree_shows_targets_their_steps_and_what_these_read(computed: Any) -> None:
    assert pipeline.draw(pipeline.load(computed.file), "text").splitlines() == [
        "orders  Parquet dataset  lake/orders",
        "├─ 2. upsert  merge ← landing  files  landing/*.csv",
        "│  └─ 1. landing is sound  expect",
        "├─ 3. purge  delete",
        "└─ 6. orders are sound  expect",
        "totals_by_region  Parquet dataset  lake/totals",
        "└─ 4. totals  merge ← totals  query",
        "   └─ converted  query",
        "      ├─ orders  Parquet dataset (above)",
        "      └─ rates  files  rates.csv",
        "large_orders  Parquet dataset  lake/large",
        "└─ 5. large ones  write ← large  rows of a target",
        "   └─ orders  Parquet dataset (above)",
    ]


def test_mermaid_has_a_line_for_each_node_and_edge(computed: Any) -> None:
    lines = pipeline.draw(pipeline.load(computed.file), "mermaid").splitlines()
    assert lines[0] == "flowchart LR"
    assert sum("-->" in line for line in lines) == 7
    assert len(lines) == 1 + 8 + 7
    assert '  n1[/"landing<br/><i>files</i><br/>1. landing is sound (expect)"/]' in lines
    assert '  n1 -->|"2. upsert"| n6' in lines


@pytest.mark.parametrize(
    ("arguments", "begins"),
    [
        ([], "orders  Parquet dataset"),
        (["--json"], '{\n  "pipeline": "shop"'),
        (["--format", "svg"], "<svg "),
        (["--format", "mermaid"], "flowchart LR"),
    ],
)
def test_the_command_writes_to_standard_output(computed: Any, arguments: list[str], begins: str) -> None:
    done = CliRunner().invoke(cli, ["graph", str(computed.file), *arguments])
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith(begins)
    assert not (computed.root / "reports").exists()


@pytest.mark.parametrize(
    ("name", "begins"), [("g.svg", "<svg "), ("g.mmd", "flowchart"), ("g.json", "{"), ("g.txt", "orders")]
)
def test_the_ending_of_the_output_chooses_the_format(computed: Any, name: str, begins: str) -> None:
    path = computed.root / name
    done = CliRunner().invoke(cli, ["graph", str(computed.file), "--output", str(path)])
    assert done.exit_code == 0, done.output
    assert str(path) in done.stdout
    assert path.read_text().startswith(begins)


def test_an_output_that_says_no_format_is_refused(computed: Any) -> None:
    done = CliRunner().invoke(cli, ["graph", str(computed.file), "--output", str(computed.root / "g.pdf")])
    assert done.exit_code == 1
    assert "end it in .svg" in done.stderr


def test_a_query_that_reads_nothing_known_is_refused_with_its_place(computed: Any) -> None:
    computed.declare(COMPUTED.replace("join rates", "join prices"))
    with pytest.raises(InputError, match=r"\[sources.converted\] sql: .*'prices'"):
        make_graph(pipeline.load(computed.file))


# In a browser


@pytest.mark.parametrize("flags", [(), (DARK,)], ids=["light", "dark"])
def test_a_browser_shows_the_graph_of_a_report_whole(
    computed: Any, browser: Browser, flags: tuple[str, ...]
) -> None:
    page = Path(computed.run().html_path)
    for seen in measure_page(browser, page, *flags):
        assert seen["over"] <= 0
        assert seen["texts"] > 30
        assert seen["overlaps"] == []
        assert seen["outside"] == []
        assert seen["lost"] == []
        assert (measure_brightness(seen["paper"]) < 100) is bool(flags)


def test_a_click_on_a_step_opens_its_section(computed: Any, browser: Browser) -> None:
    page = Path(computed.run().html_path)
    (seen,) = measure_page(browser, page, widths=(1400,), click=".intarsia-graph a")
    assert (seen["was_open"], seen["is_open"]) == (False, True)
    assert seen["hash"] == "#step-1-body"


def test_no_text_is_clipped_or_overlaps_in_small_and_large_graphs(tmp_path: Path, browser: Browser) -> None:
    graphs = [make_graph(make_large(nodes)) for nodes in (4, 40)]
    assert [len(graph_to_json(graph)["nodes"]) for graph in graphs] == [4, 40]
    page = tmp_path / "graph.html"
    page.write_text(f"<!doctype html><body>{''.join(map(draw_svg, graphs))}</body>")
    (seen,) = measure_page(browser, page, widths=(1400,))
    assert seen["texts"] > 100
    assert seen["overlaps"] == []
    assert seen["outside"] == []


def test_directories_that_most_places_share_are_left_out_of_the_picture(tmp_path: Path) -> None:
    (tmp_path / "pipelines").mkdir()
    file = tmp_path / "pipelines" / "p.toml"
    file.write_text(
        '[sources.a]\npath = "../far/away/landing/*.csv"\n[targets.b]\npath = "../far/away/lake/b"\n'
        '[[steps]]\noperation = "write"\nsource = "a"\ntarget = "b"\n'
    )
    svg = pipeline.draw(pipeline.load(file), "svg")
    assert ">…/landing/*.csv<" in svg
    assert ">…/lake/b<" in svg
    assert "../far/away/lake/b" in svg  # in the tooltip
    assert "../far/away/lake/b" in pipeline.draw(pipeline.load(file), "text")
