"""Charts of a table's commits over time, as SVG: its rows and its size after each, what each has written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC
from html import escape

from intarsia.core.history import Commit
from intarsia.show import units

__all__ = ["draw_history", "draw_spark"]

MOST_POINTS = 240
"""Maximum commits in a chart; of more, some in between are left out, never the newest."""
_WIDTH, _HEIGHT = 600.0, 120.0


def draw_history(commits: Sequence[Commit]) -> str:
    """A chart for each thing that at least two of the commits say; may be empty."""
    return (
        _draw_after(commits, "rows", units.format_number, lambda commit: commit.rows_after)
        + _draw_after(commits, "size", units.format_size, lambda commit: commit.bytes_after)
        + _draw_written(commits)
    )


def _draw_after(
    commits: Sequence[Commit],
    what: str,
    show: Callable[[int], str],
    measure: Callable[[Commit], int | None],
) -> str:
    """What the table had of it after each commit, oldest at the left."""
    known = _select([commit for commit in commits[::-1] if measure(commit) is not None])
    if len(known) < 2:
        return ""
    values = [measure(commit) or 0 for commit in known]
    line = _draw_line(values, max(values))
    step = _WIDTH / len(known)
    tips = "".join(
        f'<rect class="hit" x="{number * step:.1f}" y="0" width="{step:.1f}" height="{_HEIGHT:.0f}">'
        f"<title>{_escape(_describe(commit))}</title></rect>"
        for number, commit in enumerate(known)
    )
    return _frame(f"{what} after each commit", f"up to {show(max(values))}", line + tips, known)


def _draw_written(commits: Sequence[Commit]) -> str:
    """The bytes that each commit has written, as bars."""
    known = _select([commit for commit in commits[::-1] if commit.bytes_written is not None])
    most = max((commit.bytes_written or 0 for commit in known), default=0)
    if len(known) < 2 or not most:
        return ""
    step = _WIDTH / max(len(known), 12)
    first = max(12 - len(known), 0)
    bars = []
    for number, commit in enumerate(known, first):
        tall = max(_HEIGHT * (commit.bytes_written or 0) / most, 1.5) if commit.bytes_written else 0.0
        bars.append(
            f'<g><rect class="hit" x="{number * step:.1f}" y="0" width="{step:.1f}" height="{_HEIGHT:.0f}"/>'
            f'<rect class="amount" x="{number * step + step * 0.1:.1f}" y="{_HEIGHT - tall:.1f}"'
            f' width="{step * 0.8:.1f}" height="{tall:.1f}"/><title>{_escape(_describe(commit))}</title></g>'
        )
    return _frame("bytes written by each commit", f"up to {units.format_size(most)}", "".join(bars), known)


def draw_spark(commits: Sequence[Commit]) -> str:
    """The rows after the last commits as a small line without labels; may be empty."""
    values = [commit.rows_after for commit in commits[:40][::-1] if commit.rows_after is not None]
    if len(values) < 2:
        return ""
    return (
        f'<svg class="spark" viewBox="0 0 {_WIDTH:.0f} {_HEIGHT:.0f}" preserveAspectRatio="none"'
        f' aria-hidden="true">{_draw_line(values, max(values))}</svg>'
    )


def _select(commits: Sequence[Commit]) -> Sequence[Commit]:
    step = -(-len(commits) // MOST_POINTS)
    return commits[::-1][::step][::-1] if step > 1 else commits


def _draw_line(values: Sequence[int], most: int) -> str:
    """Steps from left to right, since rows stay what they are until the next commit."""
    step = _WIDTH / len(values)
    heights = [_HEIGHT - (_HEIGHT - 6) * value / most if most else _HEIGHT for value in values]
    path = f"M0 {heights[0]:.1f}"
    for number, y in enumerate(heights):
        path += f"V{y:.1f}H{(number + 1) * step:.1f}"
    base = f"{_HEIGHT:.0f}"
    return f'<path class="area" d="{path}V{base}H0Z"/><path class="line" d="{path}"/>'


def _frame(title: str, most: str, body: str, commits: Sequence[Commit]) -> str:
    times = [commit.time for commit in commits if commit.time is not None]
    ends = [f"{times[at].astimezone(UTC):%Y-%m-%d %H:%M} UTC" for at in (0, -1)] if times else ["", ""]
    return (
        f'<div class="chart"><div class="head"><span>{title}</span><span>{most}</span></div>'
        f'<svg viewBox="0 0 {_WIDTH:.0f} {_HEIGHT:.0f}" preserveAspectRatio="none" role="img">'
        f"<title>{title}</title>{body}</svg>"
        f'<div class="head"><span>{ends[0]}</span><span>{ends[1]}</span></div></div>'
    )


def _describe(commit: Commit) -> str:
    when = "" if commit.time is None else f", {commit.time.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
    lines = [f"version {commit.version}: {commit.operation}{when}"]
    if commit.rows_after is not None:
        lines.append(f"{units.format_count(commit.rows_after, 'row')} after it")
    if commit.bytes_after is not None:
        lines.append(f"{units.format_size(commit.bytes_after)} after it")
    if commit.bytes_written is not None:
        lines.append(f"{units.format_size(commit.bytes_written)} written")
    return "\n".join(lines)


def _escape(text: str) -> str:
    return escape("\n".join(map(units.make_printable, text.splitlines())), quote=True)
