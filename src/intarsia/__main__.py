"""``python -m intarsia``: the command line, for where the script is not on the PATH."""

from __future__ import annotations

from intarsia.cli import main

if __name__ == "__main__":
    main(program="python -m intarsia")
