"""Importing intarsia stays light, and its public names are real."""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import subprocess
import sys
from pathlib import Path

import intarsia
from intarsia.common import lazy

OPTIONAL = (
    "duckdb",
    "pyspark",
    "pyiceberg",
    "fsspec",
    "sqlglot",
    "rich",
    "click",
    "s3fs",
    "pandas",
    "polars",
    "starlette",
    "uvicorn",
    "opentelemetry",
)
HEAVY_PARTS = ("api", "engines", "tables", "storage", "datasets", "sql", "show", "cli", "pipeline", "ui")


def _run(script: str) -> str:
    """The output of a script in a fresh interpreter that sees installed packages only."""
    done = subprocess.run([sys.executable, "-I", "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _modules_after(statement: str) -> set[str]:
    return set(json.loads(_run(f"import json, sys\n{statement}\nprint(json.dumps(sorted(sys.modules)))")))


def _packages(modules: set[str]) -> set[str]:
    return {name.partition(".")[0] for name in modules}


def test_importing_intarsia_brings_in_nothing_but_the_standard_library_and_pyarrow():
    # pyarrow itself takes numpy along where it is installed; only what comes on top is ours.
    ours = _packages(_modules_after("import intarsia")) - _packages(_modules_after("import pyarrow"))
    assert {name for name in ours if name not in sys.stdlib_module_names} <= {"intarsia", "pyarrow"}


def test_importing_intarsia_loads_no_engine_no_table_and_no_optional_package():
    loaded = _modules_after("import intarsia")
    assert loaded.isdisjoint(OPTIONAL)
    assert loaded.isdisjoint(f"intarsia.{part}" for part in HEAVY_PARTS)


def test_core_and_common_import_where_only_pyarrow_is_installed():
    script = f"""
import importlib, pkgutil, sys
for name in {(*OPTIONAL, "numpy")!r}:
    sys.modules[name] = None  # an import of it now fails
import intarsia.common, intarsia.core
for package in (intarsia.common, intarsia.core):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        importlib.import_module(module.name)
        print(module.name)
"""
    assert "intarsia.core.ports" in _run(script).split()


def test_every_package_that_a_module_begins_with_is_missed_by_the_name_of_its_extra():
    # dbt and dlt import their module themselves, and so have the package.
    known = {"intarsia", "pyarrow", "dbt", "dbt_common", "dlt", *lazy._EXTRAS, *sys.stdlib_module_names}
    unknown = set()
    for path in Path(intarsia.__file__).parent.rglob("*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
            unknown |= {(path.name, name) for name in names if name.partition(".")[0] not in known}
    assert unknown == set()


def test_an_embedded_catalog_without_pyiceberg_names_its_extra():
    script = """
import sys
for name in ("pyiceberg", "pydantic", "pyroaring", "sqlalchemy"):
    sys.modules[name] = None  # an import of it now fails
from intarsia.errors import NotSupported
try:
    from intarsia.tables.iceberg import embedded_catalog
except NotSupported as error:
    print(error)
"""
    assert "pip install 'intarsia[iceberg]'" in _run(script)


def test_every_public_name_is_there_and_listed():
    names = getattr(intarsia, "__all__", [])
    missing = [name for name in names if not hasattr(intarsia, name)]
    assert missing == []
    assert set(names) <= set(dir(intarsia))


def test_every_public_name_of_pipelines_is_there_and_listed():
    pipeline = importlib.import_module("intarsia.pipeline")
    assert [name for name in pipeline.__all__ if getattr(pipeline, name, None) is None] == []
    assert set(pipeline.__all__) <= set(dir(pipeline))


def test_public_names_are_sorted_and_unique():
    names = list(getattr(intarsia, "__all__", []))
    assert names == sorted(set(names))


def test_every_public_name_is_documented():
    def documented(value: object) -> bool:
        if not callable(value):  # __version__ and the like
            return True
        text = inspect.getdoc(value) or ""
        generated = f"{getattr(value, '__name__', '')}("  # what a dataclass without a docstring gets
        return bool(text.strip()) and not text.startswith(generated)

    silent = [name for name in getattr(intarsia, "__all__", []) if not documented(getattr(intarsia, name))]
    assert silent == []


def test_nothing_public_is_left_out_of_the_list():
    script = """
import __future__, inspect, json, intarsia
public = [n for n, v in vars(intarsia).items() if not n.startswith("_") and not inspect.ismodule(v)
          and not isinstance(v, __future__._Feature) and getattr(v, "__module__", "").startswith("intarsia")]
print(json.dumps(sorted(set(public) - set(getattr(intarsia, "__all__", [])))))
"""
    assert json.loads(_run(script)) == []


def test_an_unknown_name_is_an_attribute_error():
    assert not hasattr(intarsia, "no_such_name")


def test_the_jvm_gateway_is_used_nowhere() -> None:
    """Spark Connect has none, so what needs it would not be the same there."""
    root = Path(intarsia.__file__).parent
    found = [
        f"{path.relative_to(root)}:{node.lineno} {node.attr}"
        for path in root.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Attribute)
        and node.attr in ("_jvm", "_gateway", "_jsc", "_jdf", "_jsparkSession", "_jwrite", "_jreader")
    ]
    assert found == []


def test_a_class_name_is_used_once():
    named: dict[str, list[str]] = {}
    for file in sorted(Path(intarsia.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.ClassDef):
                named.setdefault(node.name, []).append(f"{file.parent.name}/{file.name}")
    assert {name: files for name, files in named.items() if len(files) > 1} == {}
