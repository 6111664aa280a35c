"""``python -m intarsia.pipeline orders.toml``."""

from __future__ import annotations

import sys

from intarsia.pipeline.submit import main

if __name__ == "__main__":
    sys.exit(main())
