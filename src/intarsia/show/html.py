"""Values as self-contained HTML for notebooks: a summary, the picture of the files, their table."""

from __future__ import annotations

from html import escape

from intarsia.core.history import History
from intarsia.show import svg
from intarsia.show.page import Fact, Line, Page, PageItem, PageTable, make_page
from intarsia.show.tiles import Drawable, Kind

_COLORS: dict[Kind, str] = {
    "kept": "k",
    "scanned": "k",
    "open": "o",
    "rewritten": "w",
    "regrouped": "w",
    "removed": "r",
    "new": "n",
}
MOST_FILES = 200
"""A page can be scrolled, so the table names more files than a terminal does before it groups them."""
# Rules of tables have a class twice: the notebook's own rules for tables would be stronger otherwise.
_STYLE = """
.intarsia{--bg:#fff;--fg:#26313c;--quiet:#6b7784;--edge:#e1e7ec;--card:#f6f8fa;--note:#fdf5e2;
--k:#5f7690;--w:#a86a00;--o:#a86a00;--r:#c03a30;--n:#22804f;
background:var(--bg);color:var(--fg);border:1px solid var(--edge);border-radius:10px;padding:14px 16px;
max-width:900px;font:13px/1.45 system-ui,-apple-system,'Segoe UI',Roboto,'Helvetica Neue',Arial,sans-serif}
@media (prefers-color-scheme:dark){.intarsia{--bg:#14191f;--fg:#d9e1e9;--quiet:#8b98a6;--edge:#2a333d;
--card:#1b222a;--note:#2c2412;--k:#9db2c9;--w:#efb04a;--o:#efb04a;--r:#ef8078;--n:#5cc48d}}
.intarsia .top{display:flex;flex-wrap:wrap;gap:2px 10px;align-items:baseline;margin:0 0 10px}
.intarsia .top b{font-size:15px}.intarsia .path{color:var(--quiet);overflow-wrap:anywhere}
.intarsia .mark{margin-left:auto;border:1px solid var(--edge);border-radius:99px;padding:1px 9px;
font-size:12px}
.intarsia .cards{display:flex;flex-wrap:wrap;gap:8px;margin:0 0 12px}
.intarsia .card{background:var(--card);border:1px solid var(--edge);border-radius:8px;padding:7px 11px;
min-width:84px}
.intarsia .card i{display:block;font-style:normal;font-size:11px;color:var(--quiet);margin-bottom:2px}
.intarsia .card div{white-space:nowrap}.intarsia .card .long{white-space:normal;max-width:300px}
.intarsia .card b{font-variant-numeric:tabular-nums}
.intarsia .k b,.intarsia.intarsia table td.k{color:var(--k)}
.intarsia .w b,.intarsia.intarsia table td.w{color:var(--w)}
.intarsia .o b,.intarsia.intarsia table td.o{color:var(--o)}
.intarsia .r b,.intarsia.intarsia table td.r{color:var(--r)}
.intarsia .n b,.intarsia.intarsia table td.n{color:var(--n)}
.intarsia .pic{border:1px solid var(--edge);border-radius:8px;overflow:hidden;margin:0 0 10px}
.intarsia .pic svg{display:block;max-width:100%;height:auto}
.intarsia details{margin:0 0 8px;overflow-x:auto}.intarsia summary{cursor:pointer;color:var(--quiet)}
.intarsia.intarsia table{border-collapse:collapse;margin:6px 0 0;width:100%;font-size:12px;background:none;
color:inherit;table-layout:auto}
.intarsia.intarsia table tr:nth-child(n),.intarsia.intarsia table tr:nth-child(n):hover{background:none}
.intarsia.intarsia table th,.intarsia.intarsia table td{text-align:left;vertical-align:top;max-width:none;
padding:3px 10px 3px 0;border:0;border-bottom:1px solid var(--edge);overflow-wrap:anywhere;white-space:normal;
min-width:6em}
.intarsia.intarsia table td{color:inherit}.intarsia.intarsia table th{color:var(--quiet);font-weight:500}
.intarsia.intarsia table .num{text-align:right;white-space:nowrap;min-width:0;
font-variant-numeric:tabular-nums}
.intarsia .note{background:var(--note);border-radius:6px;padding:6px 10px;margin:0 0 6px}
"""


def render(value: Drawable | History) -> str:
    """The value as a fragment of HTML that is well-formed XML too; every text from outside is escaped.

    It follows the reader's light or dark setting and brings its own background, so that it reads
    well in a notebook of either kind. The same value gives the same text.
    """
    page = make_page(value, most_files=MOST_FILES)
    parts = [_render_top(page), _render_cards(page.facts)]
    if not isinstance(value, History):  # which has no files to draw
        parts.append(f'<div class="pic">{svg.layout(value, heading=False)}</div>')
    parts += [_render_table(table) for table in page.tables]
    parts += [f'<div class="note">{_escape(note)}</div>' for note in page.notes]
    return f'<div class="intarsia"><style>{_STYLE}</style>{"".join(parts)}</div>'


def _render_top(page: Page) -> str:
    return (
        f'<div class="top"><b>{_escape(page.title)}</b><span class="path">{_escape(page.path)}</span>'
        f'<span class="mark">{_escape(page.mark)}</span></div>'
    )


def _render_cards(facts: tuple[Fact, ...]) -> str:
    return f'<div class="cards">{"".join(map(_render_card, facts))}</div>'


def _render_card(fact: Fact) -> str:
    return f'<div class="card"><i>{_escape(fact.label)}</i>{"".join(map(_render_item, fact.items))}</div>'


def _render_item(item: PageItem) -> str:
    css = [_COLORS[item.kind]] if item.kind and item.value != "0" else []
    css += ["long"] if len(str(item)) > 40 else []
    attribute = f' class="{" ".join(css)}"' if css else ""
    return f"<div{attribute}><b>{_escape(item.value)}</b> {_escape(item.word)}</div>"


def _render_table(table: PageTable) -> str:
    heads = "".join(f"<th{_make_number_class(table, name)}>{_escape(name)}</th>" for name in table.columns)
    lines = "".join(_render_line(table, line) for line in table.lines)
    shown = ' open="open"' if table.is_open else ""
    return (
        f"<details{shown}>"
        f"<summary>{_escape(table.title)} ({len(table.lines)})</summary>"
        f"<table><thead><tr>{heads}</tr></thead><tbody>{lines}</tbody></table></details>"
    )


def _render_line(table: PageTable, line: Line) -> str:
    cells = [
        f"<td{_make_number_class(table, name) or _choose_color(name, line)}>{_escape(cell)}</td>"
        for name, cell in zip(table.columns, line.cells, strict=True)
    ]
    return f"<tr>{''.join(cells)}</tr>"


def _make_number_class(table: PageTable, name: str) -> str:
    return ' class="num"' if name in table.numbers else ""


def _choose_color(name: str, line: Line) -> str:
    return f' class="{_COLORS[line.kind]}"' if line.kind and name in ("action", "what") else ""


def _escape(text: str) -> str:
    return escape(text, quote=True)
