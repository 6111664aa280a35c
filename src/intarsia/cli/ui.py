"""``intarsia ui``: a page to look at a lake, served on this machine until Ctrl-C."""

from __future__ import annotations

import webbrowser
from collections.abc import Sequence

from intarsia.cli.screen import get_screen
from intarsia.common.lazy import import_optional

__all__ = ["show_ui"]


def show_ui(place: str, *, port: int, reports: Sequence[str], open_browser: bool) -> None:
    """Serve the page, and say where it is."""
    shown = get_screen()

    def tell(address: str) -> None:
        if shown.json:
            shown.show_json({"url": address})
        shown.say((address, "bold"), f"  {place} (read-only; Ctrl-C ends it)")
        if open_browser:
            webbrowser.open(address)

    with shown.log():
        import_optional("intarsia.ui.server").serve(place, port=port, reports=tuple(reports), on_ready=tell)
