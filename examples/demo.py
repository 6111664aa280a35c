"""A month of orders, and everything that happens to it: run by ``make demo``; needs pyarrow and sqlglot only.

Writes a dataset and a page with pictures to ``demo-output`` and checks every count on the way with a
reader that knows nothing of intarsia.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import textwrap
import time
from dataclasses import dataclass, field
from datetime import date, timedelta
from html import escape
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

import intarsia as it
from intarsia.core.inspection import FileRange, Inspection, find_file_ranges
from intarsia.show import svg, text

FIRST_DAY = date(2025, 3, 1)
DAYS = 30
FILES_PER_DAY = 6
DAY = 86_400_000_000
"""Microseconds."""
PRODUCTS = [f"{wood} {thing}" for wood in ("oak", "ash", "maple", "walnut", "cherry", "pine")
            for thing in ("chair", "table", "shelf", "stool", "bench")]  # fmt: skip
COUNTRIES = ["at", "ch", "de", "es", "fr", "it", "nl", "pl", "pt", "se"]
STATES = ["open", "paid", "shipped", "shipped", "shipped", "returned"]


# The data


def numbers(count: int) -> pa.Array:
    """0, 1, 2, ... without a loop."""
    return pc.subtract(pc.cumulative_sum(pa.repeat(pa.scalar(1, pa.int64()), count)), 1)


def pick(choices: list[str], count: int, seed: int) -> pa.Array:
    at = pc.floor(pc.multiply(pc.random(count, initializer=seed), len(choices))).cast(pa.int32())
    return pa.array(choices).take(at)


def day_of(number: int) -> date:
    return FIRST_DAY + timedelta(days=number)


def orders(first: int, count: int, per_day: int, *, seed: int) -> pa.Table:
    """Orders number ``first`` and on, in the order of their time; their ids are even and ascending."""
    number = pc.add(numbers(count), first)
    start = pa.scalar(FIRST_DAY, pa.date32()).cast(pa.timestamp("us"))
    day = pc.divide(number, per_day)
    within = pc.multiply(pc.subtract(number, pc.multiply(day, per_day)), DAY // per_day)
    placed = pc.add(start, pc.add(pc.multiply(day, DAY), within).cast(pa.duration("us")))
    customer = pc.power(pc.random(count, initializer=seed), 3.0)  # a few buy much, many buy little
    cents = pc.floor(pc.multiply(pc.random(count, initializer=seed + 1), 90_000)).cast(pa.int64())
    quantity = pc.ceil(pc.multiply(pc.random(count, initializer=seed + 2), 5)).cast(pa.int32())
    return pa.table({
        "order_id": pc.multiply(number, 2),
        "customer_id": pc.floor(pc.multiply(customer, 200_000)).cast(pa.int32()),
        "product": pick(PRODUCTS, count, seed + 3),
        "country": pick(COUNTRIES, count, seed + 4),
        "status": pick(STATES, count, seed + 5),
        "quantity": quantity,
        "amount": pc.divide(pc.add(cents, 999).cast(pa.float64()), 100.0),
        "placed_at": placed,
        "changed_at": placed,
        "day": placed.cast(pa.date32(), safe=False),
    })  # fmt: skip


def some_of(table: pa.Table, share: float, *, seed: int) -> pa.Table:
    return table.filter(pc.less(pc.random(table.num_rows, initializer=seed), share))


def changed(table: pa.Table, column: str, values: Any) -> pa.Table:
    if not isinstance(values, (pa.Array, pa.ChunkedArray)):
        values = pa.repeat(pa.scalar(values, table.schema.field(column).type), table.num_rows)
    return table.set_column(table.schema.get_field_index(column), table.schema.field(column), values)


def changes_of_a_day(month: pa.Table, per_day: int) -> tuple[pa.Table, int, int]:
    """What one day brings: its orders, changes of earlier ones, and some that come late.

    Returns the rows, how many of them are changes and how many are new.
    """
    today = orders(DAYS * per_day, per_day, per_day, seed=901)
    evening = month.slice((DAYS - 1) * per_day + per_day * 5 // 8, per_day * 3 // 8)
    before = month.slice((DAYS - 3) * per_day, per_day // 4)
    shipped = pa.concat_tables([some_of(evening, 0.10, seed=902), some_of(before, 0.02, seed=903)])
    later = pc.add(shipped["changed_at"], pa.scalar(timedelta(days=1)))
    shipped = changed(changed(shipped, "status", "shipped"), "changed_at", later)
    # Orders that arrive late lie between others: odd ids, in a file where no row has one of them.
    late = some_of(month.slice((DAYS - 9) * per_day + per_day // 4, per_day // 4), 0.01, seed=904)
    late = changed(late, "order_id", pc.add(late["order_id"], 1))
    changes = pa.concat_tables([today, shipped, late])
    return changes, shipped.num_rows, today.num_rows + late.num_rows


# Telling


@dataclass
class Story:
    """What is told, on the terminal and on the page."""

    target: str
    color: bool
    width: int
    begun: float = field(default_factory=time.perf_counter)
    page: list[str] = field(default_factory=list)
    number: int = 0

    def chapter(self, title: str, sentence: str) -> None:
        self.number += 1
        head = f"{self.number}. {title}"
        print(f"\n\x1b[1;7m {head} \x1b[0m" if self.color else f"\n== {head} ==")
        print(textwrap.fill(sentence, self.width), end="\n\n")
        self.page.append(f"<h2>{escape(head)}</h2><p>{escape(sentence)}</p>")

    def say(self, *lines: str) -> None:
        for line in lines:
            print(f"   {line}")
        print()

    def show(self, value: Any, *, page: bool = True) -> None:
        """The value in full, as a terminal and as a page show it."""
        print(text.render(value, width=self.width, color=self.color), end="\n\n")
        if page:
            self.page.append(value._repr_html_())

    def layout(self, value: Any) -> None:
        print(text.layout(value, width=self.width, most_rows=16, color=self.color), end="\n\n")

    def done(self, result: it.MergeResult, code: str) -> None:
        """A result in three lines; the page has the files in a picture, too."""
        counts = {
            "rewritten": len(result.rewritten_files),
            "new": len(result.inserted_files),
            "removed": len(result.removed_files),
            "untouched": len(result.preserved_files),
        }
        files = ", ".join(f"{count:,} {word}" for word, count in counts.items() if count)
        told = (
            f"rows: {result.inserted:,} inserted, {result.updated:,} updated, {result.deleted:,} deleted; "
            f"{result.target_count_before:,} before, {result.total:,} after",
            f"files: {files}; {result.bytes_written / 1e6:,.1f} MB written in {result.seconds:.2f} s",
        )
        self.say(f">>> {code}", *told)
        self.page.append(f"<pre>{escape(code)}</pre><p>{'<br>'.join(map(escape, told))}</p>")
        if result.changed:
            self.page.append(f"<figure>{svg.layout(result, heading=False, most_rows=12)}</figure>")

    def picture(self, caption: str, drawn: str) -> None:
        self.page.append(f"<figure><figcaption>{escape(caption)}</figcaption>{drawn}</figure>")

    def check(self, expected: int) -> None:
        """Count the rows with a reader that only lists the directory."""
        found = ds.dataset(self.target, partitioning="hive").count_rows()
        assert found == expected, f"{found:,} rows instead of {expected:,}"


# The chapters


def write_month(story: Story, rows: int) -> tuple[pa.Table, int]:
    per_day = max(rows // DAYS, FILES_PER_DAY)
    story.chapter("A month of orders", f"{DAYS} days in hive partitions, {FILES_PER_DAY} files each.")
    month = orders(0, DAYS * per_day, per_day, seed=1)
    each = -(-per_day // FILES_PER_DAY)
    result = it.write(month, story.target, partition_by="day", max_rows_per_file=each)
    story.check(month.num_rows)
    story.say(f"{result.total:,} rows written in {result.seconds:.1f} s")
    story.show(it.inspect(story.target))
    return month, per_day


def upsert(story: Story, month: pa.Table, per_day: int) -> int:
    changes, updates, inserts = changes_of_a_day(month, per_day)
    story.chapter(
        "The plan of an upsert",
        f"A new day has come: {changes.num_rows:,} rows, of which {updates:,} change earlier orders. "
        "The plan says why each file stays or goes, before anything is written.",
    )
    plan = it.plan("merge", changes, story.target, on="order_id")
    story.show(plan)
    story.layout(plan)

    story.chapter("The upsert", "Only the files with a hit are written anew; new rows get new files.")
    result = it.merge(changes, story.target, on="order_id")
    story.done(result, 'it.merge(changes, "orders", on="order_id")')
    assert (result.updated, result.inserted) == (updates, inserts)
    assert len(result.rewritten_files) == plan.count("rewrite")
    story.check(month.num_rows + inserts)
    again = it.merge(changes, story.target, on="order_id", strategy="insert")
    story.done(again, 'it.merge(changes, "orders", on="order_id", strategy="insert")  # all are there')
    assert not again.changed
    return result.total


def delete(story: Story, total: int, per_day: int) -> int:
    story.chapter("A delete, dry first", "Two days have expired: whole files go by their partition, unread.")
    where = f"day < date '{day_of(2)}'"
    dry = it.delete(story.target, where, dry_run=True)
    story.show(dry.plan, page=False)
    story.check(total)
    result = it.delete(story.target, where)
    story.done(result, f'it.delete("orders", "{where}")')
    assert result.deleted == dry.deleted == 2 * per_day
    assert not result.rewritten_files
    story.check(result.total)
    return result.total


def update(story: Story, total: int) -> None:
    last = day_of(DAYS - 1)
    where = f"status = 'returned' and day = date '{last}'"
    story.chapter("An update in SQL", "Returned orders of one day are refunded; the other days are not read.")
    rows = ds.dataset(story.target, partitioning="hive").count_rows(
        filter=(pc.field("status") == "returned") & (pc.field("day") == str(last))
    )
    result = it.update(story.target, {"amount": "0", "quantity": "0"}, where)
    story.done(result, f'it.update("orders", {{"amount": "0", "quantity": "0"}}, "{where}")')
    assert result.updated == rows
    story.check(total)


def merge_clauses(story: Story, month: pa.Table, per_day: int, total: int) -> int:
    story.chapter(
        "A MERGE with clauses",
        "A feed of the warehouse: cancelled orders go, shipped ones change, unknown ones come.",
    )
    known = some_of(month.slice(20 * per_day, per_day // 2), 0.02, seed=77)
    unknown = orders((DAYS + 1) * per_day, 50, per_day, seed=905)
    feed = pa.concat_tables([known, unknown])
    gone = pc.less(pc.random(feed.num_rows, initializer=78), 0.25)
    feed = feed.append_column("cancelled", gone)
    cancelled = pc.sum(gone.slice(0, known.num_rows)).as_py() or 0
    result = it.merge(
        feed,
        story.target,
        on="order_id",
        clauses=[
            it.when_matched("source.cancelled").delete(),
            it.when_matched().update({"status": "'shipped'", "changed_at": "source.changed_at"}),
            it.when_not_matched("not source.cancelled").insert(
                {name: f"source.{name}" for name in month.schema.names}
            ),
        ],
    )
    story.done(result, 'it.merge(feed, "orders", on="order_id", clauses=[when_matched(...).delete(), ...])')
    assert (result.deleted, result.updated) == (cancelled, known.num_rows - cancelled)
    story.check(total + result.inserted - result.deleted)
    return result.total


def deduplicate(story: Story, month: pa.Table, per_day: int, total: int) -> None:
    story.chapter("Deduplication", "A file was delivered twice; of each order the newest state stays.")
    twice = month.slice(12 * per_day, per_day // 10)
    it.write(twice, story.target)
    story.check(total + twice.num_rows)
    result = it.deduplicate(story.target, on="order_id", order_by="changed_at")
    story.done(result, 'it.deduplicate("orders", on="order_id", order_by="changed_at")')
    assert result.deleted == twice.num_rows
    story.check(total)


def compact(story: Story, total: int) -> None:
    story.chapter("Compaction", "The files of each day are brought together; rows stay as they are.")
    result = it.compact(story.target, target_mb_per_file=32)
    story.done(result, 'it.compact("orders", target_mb_per_file=32)')
    assert result.total == total
    assert not it.compact(story.target, target_mb_per_file=32).changed
    story.check(total)


def optimize(story: Story, month: pa.Table, per_day: int, total: int) -> None:
    story.chapter(
        "Z-order",
        "A day's rows are laid along a curve over customer and product: a filter on either reads less.",
    )
    day = f"day={day_of(DAYS - 2)}"
    before = ranges(story, day)
    result = it.optimize(
        story.target,
        by=["customer_id", "product"],
        partition_filter=day,
        target_rows_per_file=max(per_day // 16, 1),
    )
    after = ranges(story, day)
    story.done(result, f'it.optimize("orders", by=["customer_id", "product"], partition_filter="{day}")')
    day_rows = month.slice((DAYS - 2) * per_day, per_day)
    shares = {c: (share(before[c], day_rows[c]), share(after[c], day_rows[c])) for c in after}
    story.say(*(
        f"a filter on one {column} reads {old:.0%} of that day's files before, {new:.0%} after"
        for column, (old, new) in shares.items()
    ))  # fmt: skip
    for column, found in after.items():
        story.picture(f"{column} in the files of that day", svg.key_ranges(found, column=column))
    assert all(new < old for old, new in shares.values())
    story.check(total)


def ranges(story: Story, day: str) -> dict[str, Any]:
    """The values of two columns in each file of a day, as its footer tells them."""
    snapshot = it.snapshot(story.target)
    return {
        column: tuple(r for r in find_file_ranges(snapshot, column) if r.path.startswith(day))
        for column in ("customer_id", "product")
    }


def share(found: tuple[FileRange, ...], values: pa.ChunkedArray) -> float:
    """The part of the files whose range a value is within, on average over some values."""
    some = values.slice(0, 500).to_pylist()
    hits: int = sum(entry.lower <= value <= entry.upper for entry in found for value in some)
    return hits / (len(found) * len(some))


def finish(story: Story, before: Inspection, output: Path) -> Path:
    after = it.inspect(story.target)
    story.chapter("The layout now", f"{after.files} files instead of {before.files}.")
    story.layout(after)
    story.page.append('<div class="pair">')
    story.picture("before", svg.layout(before, width=440))
    story.picture("after", svg.layout(after, width=440))
    story.page.append("</div>")
    page = output / "page.html"
    page.write_text(PAGE.replace("BODY", "\n".join(story.page)), encoding="utf-8")
    return page


PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<meta name="color-scheme" content="light dark"><title>intarsia: a month of orders</title><style>
body{max-width:900px;margin:40px auto;padding:0 16px;background:#fff;color:#26313c;
font:15px/1.5 system-ui,-apple-system,'Segoe UI',Roboto,'Helvetica Neue',Arial,sans-serif}
h1{font-size:26px;margin:0}h2{font-size:19px;margin:44px 0 2px}p{margin:2px 0 12px;color:#54606c}
pre{background:#f6f8fa;border:1px solid #e1e7ec;border-radius:8px;padding:9px 12px;overflow:auto;
font:12.5px/1.45 ui-monospace,Menlo,Consolas,monospace;white-space:pre-wrap}
figure{margin:14px 0}figcaption{font-size:13px;color:#6b7784;margin-bottom:4px}
figure svg{width:100%;height:auto;box-sizing:border-box;border:1px solid #e1e7ec;border-radius:8px}
.intarsia{margin:10px 0}.pair{display:grid;grid-template-columns:1fr 1fr;gap:14px;align-items:start}
@media (prefers-color-scheme:dark){body{background:#0f1317;color:#d9e1e9}p{color:#9aa7b4}
pre{background:#1b222a;border-color:#2a333d}figure svg{border-color:#2a333d}}
</style></head><body>
<h1>A month of orders</h1>
<p>Made by <code>make demo</code>. Every tile is a file; its colour says what happened to it, its
tooltip why.</p>
BODY
</body></html>
"""


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Upsert a day's changes into a month of orders, and more.")
    parser.add_argument("--rows", type=int, default=3_000_000, help="orders in the month")
    parser.add_argument("--output", type=Path, default=Path("demo-output"), help="made anew on each run")
    asked = parser.parse_args(arguments)
    shutil.rmtree(asked.output, ignore_errors=True)
    asked.output.mkdir(parents=True)
    story = Story(
        target=str(asked.output / "orders"),
        color=sys.stdout.isatty() and not os.environ.get("NO_COLOR"),
        width=min(shutil.get_terminal_size().columns, 96),
    )
    month, per_day = write_month(story, asked.rows)
    before = it.inspect(story.target)
    total = upsert(story, month, per_day)
    total = delete(story, total, per_day)
    update(story, total)
    total = merge_clauses(story, month, per_day, total)
    deduplicate(story, month, per_day, total)
    compact(story, total)
    optimize(story, month, per_day, total)
    page = finish(story, before, asked.output)
    print(f"All counts checked, {time.perf_counter() - story.begun:.1f} s in all.")
    print(f"The same with pictures: {page.resolve().as_uri()}")


if __name__ == "__main__":
    main()
