"""A bucket of an object store, looked at without intarsia."""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

KEY, SECRET, REGION = "aKeyOfTests", "aSecretOfTests", "us-east-1"
ACCOUNT, ACCOUNT_KEY = "accountoftests", base64.b64encode(f"{SECRET}OnAzure".encode()).decode()


@dataclass
class Bucket:
    """A bucket of its own for a test, looked at without intarsia."""

    port: int
    name: str
    opened: pafs.FileSystem = field(repr=False)
    kind: str = "s3"

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


def azure(port: int) -> pafs.AzureFileSystem:
    return pafs.AzureFileSystem(
        ACCOUNT,
        account_key=ACCOUNT_KEY,
        blob_storage_authority=f"127.0.0.1:{port}",
        blob_storage_scheme="http",
        dfs_storage_authority=f"127.0.0.1:{port}",
        dfs_storage_scheme="http",
    )


def make_azure_options(port: int) -> dict[str, str]:
    """What adlfs takes."""
    endpoint = f"http://127.0.0.1:{port}/{ACCOUNT}"
    return {
        "connection_string": "DefaultEndpointsProtocol=http;"
        f"AccountName={ACCOUNT};AccountKey={ACCOUNT_KEY};BlobEndpoint={endpoint};"
    }


def open_store(kind: str, port: int, *, patient: bool = True) -> pafs.FileSystem:
    """A store of a server on this machine, by PyArrow's own file system; on S3 it may give up soon."""
    if kind == "azure":
        return azure(port)
    return s3(port, allow_bucket_creation=True) if patient else open_impatiently(port)


def open_impatiently(port: int) -> pafs.S3FileSystem:
    """One that waits for seconds only, and sends a request again once."""
    again = pafs.AwsStandardS3RetryStrategy(max_attempts=2)
    return s3(port, connect_timeout=2, request_timeout=5, retry_strategy=again)


class ListingReader:
    """Somebody who lists objects and gets each of them in one request, knowing nothing of a log."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        if bucket.kind == "s3":
            import botocore.session

            self._client = botocore.session.get_session().create_client(
                "s3",
                region_name=REGION,
                endpoint_url=bucket.endpoint,
                aws_access_key_id=KEY,
                aws_secret_access_key=SECRET,
            )
        else:
            from azure.storage.blob import ContainerClient

            options = make_azure_options(bucket.port)
            # Azurite closes connections after seconds without a request: the next one is sent again.
            again = {"retry_total": 2, "initial_backoff": 1, "increment_base": 1, "random_jitter_range": 1}
            self._client = ContainerClient.from_connection_string(
                options["connection_string"], bucket.name, **again
            )

    def read(self, below: str) -> pa.Table:
        """All rows; FileNotFoundError where a file was removed meanwhile."""
        return pa.concat_tables(
            pq.read_table(pa.BufferReader(self.get_object(key))) for key in self.list_keys(f"{below}/")
        )

    def list_keys(self, prefix: str) -> list[str]:
        if self._bucket.kind == "s3":
            page = self._client.list_objects_v2(Bucket=self._bucket.name, Prefix=prefix)
            return [one["Key"] for one in page["Contents"]]
        return list(self._client.list_blob_names(name_starts_with=prefix))

    def get_object(self, key: str) -> bytes:
        """All of it, by one request; FileNotFoundError where there is none any more."""
        if self._bucket.kind == "s3":
            try:
                return self._client.get_object(Bucket=self._bucket.name, Key=key)["Body"].read()
            except self._client.exceptions.NoSuchKey as error:
                raise FileNotFoundError(key) from error
        from azure.core.exceptions import ResourceNotFoundError

        try:
            return self._client.download_blob(key).readall()
        except ResourceNotFoundError as error:
            raise FileNotFoundError(key) from error

    def close(self) -> None:
        self._client.close()
