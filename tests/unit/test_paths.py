"""How paths and URLs are shown to people."""

from __future__ import annotations

from pathlib import Path

import pytest

from intarsia.common.paths import redact_path


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("s3://me:pw@bucket/lake/orders?region=x&token=y", "s3://bucket/lake/orders"),
        ("s3://me:p/w@bucket/lake", "s3://bucket/lake"),
        ("s3://bucket", "s3://bucket"),
        ("https://me@host:80/a/b?signature=1", "https://host:80/a/b"),
        (
            "abfss://box@account.dfs.core.windows.net/lake?sas=x",
            "abfss://box@account.dfs.core.windows.net/lake",
        ),
        ("file:///a/b c", "file:///a/b c"),
        ("/a/b?c@d", "/a/b?c@d"),
        ("s3://bucket/user@home/lake", "s3://bucket/user@home/lake"),
        (Path("a@b/c"), "a@b/c"),
    ],
)
def test_a_url_is_shown_without_who_signs_in_and_without_options(given: str | Path, shown: str) -> None:
    assert redact_path(given) == shown
