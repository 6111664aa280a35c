"""What the repository and the built package hold, and what they must not name."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

import intarsia

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
DOORS = sorted(path.stem for path in (ROOT / "requirements").glob("door-*.txt"))
PINNED = ["dev", "bench", "docs", "duckdb-oldest", "engines-oldest", "coverage", "release", *DOORS]

# Put together from halves, so that this file does not name them itself.
REGISTRIES = [
    "py" + "pi.org",
    "python" + "hosted.org",
    "ana" + "conda.org",
    "conda" + ".io",
    "npm" + "js.org",
    "npm" + "js.com",
    "maven" + ".org",
    "maven" + ".apache.org",
    "crates" + ".io",
]
MACHINE_PATH = re.compile(r"(?<![\w.\-)}\]])/(?:wo" + "rk|ro" + "ot|ho" + r"me|Us" + r"ers)/\w")


def _repository_files() -> list[Path]:
    """Every file that is tracked, or would be with `git add`; without git, all published folders."""
    if (ROOT / ".git").exists():
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT,
            capture_output=True,
            check=True,
        ).stdout.decode()
        found = [ROOT / name for name in listed.split("\0") if name]
    else:
        top = [path for path in ROOT.iterdir() if path.is_file()]
        folders = ["src", "tests", "requirements", "bench", "examples", "docs", "tools", ".ci", ".github"]
        below = [path for folder in folders for path in (ROOT / folder).rglob("*")]
        found = [path for path in top + below if "__pycache__" not in path.parts]
    return [path for path in found if path.is_file()]


def _lines(path: Path) -> list[str]:
    return path.read_bytes().decode("utf-8", errors="replace").splitlines()


def _places(pattern: re.Pattern[str]) -> list[str]:
    return [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()[:120]}"
        for path in _repository_files()
        for number, line in enumerate(_lines(path), start=1)
        if pattern.search(line)
    ]


def _names(requirements: list[str]) -> set[str]:
    return {re.split(r"[\[<>=!~; ]", line, maxsplit=1)[0].lower() for line in requirements}


def test_no_file_names_a_package_registry():
    assert _places(re.compile("|".join(map(re.escape, REGISTRIES)), re.IGNORECASE)) == []


def test_no_file_names_a_path_of_the_machine_it_was_written_on():
    assert _places(MACHINE_PATH) == []
    here = [str(path) for path in (ROOT, Path.home()) if len(path.parts) > 2]
    if here:
        assert _places(re.compile("|".join(map(re.escape, here)))) == []


@pytest.mark.parametrize("text", ["'/wo" + "rk/x'", "cd /ro" + "ot/x", "(/ho" + "me/me)"])
def test_a_path_of_a_machine_is_recognised(text: str):
    assert MACHINE_PATH.search(text)


def test_there_is_no_lock_file_with_addresses():
    assert [
        path.name for path in _repository_files() if path.name in ("uv.lock", "poetry.lock", "pdm.lock")
    ] == []


def test_only_pyarrow_is_required():
    assert _names(PROJECT["project"]["dependencies"]) == {"pyarrow"}


def test_the_extra_all_holds_every_other_extra():
    doors = {name.removeprefix("door-") for name in DOORS}  # each has pins of its own
    extras = PROJECT["project"]["optional-dependencies"]
    assert doors <= set(extras)
    assert set(extras) - doors == {
        "sql",
        "fsspec",
        "s3",
        "gcs",
        "azure",
        "duckdb",
        "spark",
        "iceberg",
        "cli",
        "lineage",
        "ui",
        "otel",
        "polars",
        "pandas",
        "all",
    }
    inside = re.fullmatch(r"intarsia\[(.*)\]", extras["all"][0])
    assert inside is not None
    assert set(inside.group(1).split(",")) == set(extras) - doors - {"all"}


@pytest.mark.parametrize("name", PINNED)
def test_every_development_requirement_is_pinned_with_hashes_and_without_addresses(name: str):
    text = (ROOT / "requirements" / f"{name}.txt").read_text()
    assert "://" not in text
    assert "--index" not in text
    joined = text.replace("\\\n", " ").splitlines()
    blocks = [line for line in joined if line and not line.lstrip().startswith("#")]
    assert blocks
    assert [block for block in blocks if "==" not in block or "--hash=sha256:" not in block] == []
    wanted = (ROOT / "requirements" / f"{name}.in").read_text().splitlines()
    wanted = [line for line in wanted if line and not line.startswith(("#", "-"))]
    assert _names(wanted) <= _names(blocks)


def test_the_two_sets_of_pins_agree():
    def pins(name: str) -> set[str]:
        found = re.findall(
            r"^([\w.\-]+==\S+)", (ROOT / "requirements" / f"{name}.txt").read_text(), re.MULTILINE
        )
        return set(found)

    dev, bench = pins("dev"), pins("bench")
    both = {pin.split("==")[0] for pin in dev} & {pin.split("==")[0] for pin in bench}
    assert both
    assert {pin for pin in bench if pin.split("==")[0] in both} <= dev


def test_the_version_is_told_once():
    assert "version" in PROJECT["project"]["dynamic"]
    source = ROOT / PROJECT["tool"]["hatch"]["version"]["path"]
    assert source == ROOT / "src" / "intarsia" / "__init__.py"
    version = intarsia.__version__
    assert re.findall(r'^__version__ = "(.+)"$', source.read_text(), re.MULTILINE) == [version]
    assert metadata.version("intarsia") == version, "run make setup: the version has changed since"
    assert re.findall(r"^version", (ROOT / "CITATION.cff").read_text(), re.MULTILINE) == []
    assert version in (ROOT / "CHANGELOG.md").read_text()


def test_the_sdist_holds_what_the_tests_look_at(tmp_path: Path):
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    (sdist,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(sdist) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
    wanted = {str(path.relative_to(ROOT)) for path in _repository_files()}
    assert wanted - names == set()
    assert {name.partition("/")[0] for name in names - wanted} == {"PKG-INFO"}


def test_the_facades_below_core_are_held_by_the_import_contract():
    contracts = {contract["id"]: contract for contract in PROJECT["tool"]["importlinter"]["contracts"]}
    held = set(contracts["core-facades"]["protected_modules"])
    core = ROOT / "src" / "intarsia" / "core"
    there = {
        f"intarsia.core.{n}"
        for n in ("ext", "incremental")
        if (core / n).exists() or (core / f"{n}.py").exists()
    }
    assert there == held


def test_the_wheel_holds_the_package_its_types_and_its_licence_and_nothing_else(tmp_path: Path):
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert "intarsia/py.typed" in names
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)
    assert {name.split("/")[0] for name in names} == {
        "intarsia",
        "pyspark_intarsia",  # Spark finds the format by this name
        wheel.name.split("-py3")[0] + ".dist-info",
    }
    modules = {str(path.relative_to(ROOT / "src")) for path in (ROOT / "src").rglob("*.py")}
    assert modules <= set(names)
