"""Iceberg tables between this library, Spark with Iceberg's runtime, PyIceberg and Polars: ``make cross``.

``INTARSIA_CROSS=full make cross`` runs all of it, on every engine: every kind of table under every operation.
"""

import os

FULL = os.environ.get("INTARSIA_CROSS") == "full"
