"""A bucket of an object store, looked at without intarsia."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

KEY, SECRET, REGION = "aKeyOfTests", "aSecretOfTests", "us-east-1"


@dataclass
class Bucket:
    """A bucket of its own for a test, looked at without intarsia."""

    port: int
    name: str
    opened: pafs.S3FileSystem = field(repr=False)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def files(self, below: str = "") -> list[str]:
        """The keys of the objects there are."""
        found = self.opened.get_file_info(
            pafs.FileSelector(f"{self.name}/{below}", recursive=True, allow_not_found=True)
        )
        return [f.path.removeprefix(f"{self.name}/") for f in found if f.is_file]

    def contents(self) -> dict[str, bytes]:
        """Every object, byte for byte."""
        found = {}
        for key in self.files():
            with self.opened.open_input_file(f"{self.name}/{key}") as file:
                found[key] = file.read()
        return found

    def data(self, below: str) -> list[str]:
        return sorted(key for key in self.files(below) if key.endswith(".parquet"))

    def rows(self, below: str, *columns: str) -> list[tuple[Any, ...]]:
        """The rows of all Parquet files below, as they are stored, sorted."""
        tables = [
            pq.ParquetFile(f"{self.name}/{key}", filesystem=self.opened).read() for key in self.data(below)
        ]
        found = pa.concat_tables(tables).select(list(columns)).to_pylist() if tables else []
        return sorted(tuple(row.values()) for row in found)


def s3(port: int, **more: Any) -> pafs.S3FileSystem:
    return pafs.S3FileSystem(
        access_key=KEY,
        secret_key=SECRET,
        region=REGION,
        scheme="http",
        endpoint_override=f"127.0.0.1:{port}",
        **more,
    )
