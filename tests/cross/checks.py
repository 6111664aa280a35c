"""What must hold of a snapshot: manifests against their list, files against rows, deletes against files."""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

from tests.cross import content
from tests.cross.content import field_types, single_value
from tests.cross.decoded import ADDED, DATA, DELETED, EXISTING, POSITIONS, File, Manifest, State
from tests.cross.lake import local
from tests.cross.plain_transforms import internal, transform
from tests.cross.summaries import check_summary

Problems = Iterator[str]


def problems(state: State, *, ours: bool = False) -> list[str]:
    """Everything that is wrong with a snapshot; ``ours`` asks for all that Java writes into a summary."""
    if state.snapshot is None:
        return []
    found = list(check_metadata(state))
    for manifest in state.manifests:
        found += check_list_record(state, manifest)
        found += check_header(state, manifest)
        found += check_entries(state, manifest)
    found += check_groups(state)
    for file in state.data:
        found += check_data_file(state, file)
    found += check_deletes(state)
    found += check_lineage(state)
    found += check_summary(state, ours=ours)
    return found + (list(check_tidy(state)) if ours else [])


def check_metadata(state: State) -> Problems:
    snapshot, metadata = state.snapshot, state.metadata
    assert snapshot is not None
    if state.version > 1:
        if snapshot.get("sequence-number", 0) > metadata["last-sequence-number"]:
            yield "metadata: the snapshot's sequence number is beyond the table's last one"
        if state.list_header.get("sequence-number", str(snapshot["sequence-number"])) != str(
            snapshot["sequence-number"]
        ):
            yield "manifest list: another sequence number in its header than in the snapshot"
    header = state.list_header.get("snapshot-id")
    if header is not None and int(header) != snapshot["snapshot-id"]:
        yield "manifest list: another snapshot id in its header than in the snapshot"
    logged = [entry["snapshot-id"] for entry in metadata.get("snapshot-log", ())]
    if logged and metadata["current-snapshot-id"] != logged[-1]:
        yield "metadata: the snapshot log does not end with the current snapshot"
    paths = Counter(file.path for file in state.live if not file.is_vector)
    for path, times in paths.items():
        if times > 1:
            yield f"{path}: live in {times} entries"


def check_list_record(state: State, manifest: Manifest) -> Problems:
    record, name = manifest.record, manifest.path.name
    if record["manifest_length"] != manifest.path.stat().st_size:
        yield f"{name}: manifest_length {record['manifest_length']} is not its size"
    if manifest.spec_id not in state.specs:
        yield f"{name}: unknown spec {manifest.spec_id}"
    statuses = {"added": ADDED, "existing": EXISTING, "deleted": DELETED}
    for word, status in statuses.items():
        files = [file for file in manifest.files if file.status == status]
        count = record.get(f"{word}_files_count", record.get(f"{word}_data_files_count"))
        if count is not None and count != len(files):
            yield f"{name}: {word}_files_count says {count}, the manifest has {len(files)}"
        rows = record.get(f"{word}_rows_count")
        if rows is not None and rows != sum(file.rows for file in files):
            yield f"{name}: {word}_rows_count says {rows}, the files have {sum(f.rows for f in files)}"
    live = [file.sequence for file in manifest.files if file.is_live]
    if state.version > 1 and live and record["min_sequence_number"] != min(live):
        yield f"{name}: min_sequence_number says {record['min_sequence_number']}, the least is {min(live)}"
    yield from _check_partition_bounds(state, manifest)


def _check_partition_bounds(state: State, manifest: Manifest) -> Problems:
    summaries, fields = manifest.record.get("partitions"), state.specs.get(manifest.spec_id, [])
    if summaries is None:
        return
    if len(summaries) != len(fields):
        yield f"{manifest.path.name}: {len(summaries)} partition summaries for {len(fields)} fields"
        return
    types = field_types(state.metadata["schemas"])
    for place, (summary, field) in enumerate(zip(summaries, fields, strict=True)):
        values = [f.tuple[place] for f in manifest.files if f.is_live and place < len(f.tuple)]
        if None in values and not summary["contains_null"]:
            yield f"{manifest.path.name}: {field['name']} has NULLs that its summary denies"
        if any(isinstance(value, float) and math.isnan(value) for value in values) and (
            summary.get("contains_nan") is False
        ):
            yield f"{manifest.path.name}: {field['name']} has NaNs that its summary denies"
        kind = _result_type(field["transform"], types.get(field["source-id"]))
        known = [value for value in values if value is not None and value == value]
        for key, outside in (("lower_bound", _less), ("upper_bound", _greater)):
            if summary.get(key) is None:
                if known:
                    yield f"{manifest.path.name}: {field['name']} has no {key}"
                continue
            bound = single_value(kind, summary[key])
            if any(outside(value, bound) for value in known):
                yield f"{manifest.path.name}: {field['name']} has values beyond its {key} {bound!r}"


def _less(value: Any, bound: Any) -> bool:
    return bool(value < bound)


def _greater(value: Any, bound: Any) -> bool:
    return bool(value > bound)


def _result_type(name: str, source: Any) -> Any:
    return source if name.startswith(("identity", "truncate")) else "int"


def check_header(state: State, manifest: Manifest) -> Problems:
    header, name = manifest.header, manifest.path.name
    if (found := header.get("partition-spec-id")) is not None and int(found) != manifest.spec_id:
        yield f"{name}: its header has spec {found}, the list {manifest.spec_id}"
    word = header.get("content")
    if word is not None and word != ("data" if manifest.content == DATA else "deletes"):
        yield f"{name}: its header has content {word!r}, the list {manifest.content}"
    for key in ("schema", "partition-spec"):
        if key not in header:
            yield f"{name}: no {key} in its header"
    wanted = [(f["source-id"], f["name"], f["transform"]) for f in state.specs.get(manifest.spec_id, [])]
    found_fields = [
        (f["source-id"], f["name"], f["transform"]) for f in json.loads(header.get("partition-spec", "[]"))
    ]
    if wanted != found_fields:
        yield f"{name}: its header has the spec {found_fields}, the table {wanted}"
    ids = [f.get("field-id", 1000 + place) for place, f in enumerate(state.specs.get(manifest.spec_id, []))]
    avro = [field.get("field-id") for field in _struct(manifest.schema, "data_file", "partition")]
    if ids != avro:
        yield f"{name}: its partition struct has the field ids {avro}, the spec {ids}"


def _struct(schema: Any, *path: str) -> list[dict[str, Any]]:
    for name in path:
        field = next(one for one in schema["fields"] if one["name"] == name)
        kind = field["type"]
        schema = next(one for one in kind if one != "null") if isinstance(kind, list) else kind
    return schema["fields"]  # type: ignore[no-any-return]


def check_entries(state: State, manifest: Manifest) -> Problems:
    name = manifest.path.name
    assert state.snapshot is not None
    last = state.snapshot.get("sequence-number", 0)
    for file in manifest.files:
        if (file.content == DATA) != (manifest.content == DATA):
            yield f"{name}: {file.path} has content {file.content}, its manifest {manifest.content}"
        if state.version > 1 and file.sequence > last:
            yield f"{name}: {file.path} has sequence number {file.sequence}, the snapshot {last}"
        version = int(manifest.header.get("format-version", 1))
        if version > 1 and file.status != ADDED and file.raw.get("sequence_number") is None:
            yield f"{name}: {file.path} is not new and has no sequence number of its own"
        if len(file.tuple) != len(state.specs.get(manifest.spec_id, ())):
            yield f"{name}: {file.path} has {len(file.tuple)} partition values"
        if file.status == DELETED and file.snapshot_id != manifest.record["added_snapshot_id"]:
            yield f"{name}: {file.path} was deleted by an older snapshot and is still listed"
        if file.is_live:
            yield from _check_there(file)


def _check_there(file: File) -> Problems:
    place = local(file.path)
    if not place.is_file():
        yield f"{file.path}: live, and not there"
    elif place.stat().st_size != file.record["file_size_in_bytes"]:
        yield f"{file.path}: {place.stat().st_size} bytes, its entry says {file.record['file_size_in_bytes']}"


def check_groups(state: State) -> Problems:
    """Among the manifests that this snapshot added files with, there is one per content and spec."""
    assert state.snapshot is not None
    added = Counter(
        (manifest.content, manifest.spec_id)
        for manifest in state.manifests
        if any(f.status == ADDED and f.snapshot_id == state.snapshot["snapshot-id"] for f in manifest.files)
    )
    for (kind, spec), count in added.items():
        if count > 1:
            yield f"{count} manifests with new files of content {kind} and spec {spec}"


def check_data_file(state: State, file: File) -> Problems:
    if not local(file.path).is_file():
        return
    held = content.read(file.path)
    if held.rows != file.rows:
        yield f"{file.path}: {held.rows} rows, its entry says {file.rows}"
        return
    fields = state.specs.get(file.spec_id, [])
    for field, value in zip(fields, file.tuple, strict=False):
        rows = held.columns.get(field["source-id"])
        if rows is None:
            continue
        made = {_same(transform(field["transform"], row)) for row in rows}
        if made and made != {_same(value)}:
            yield f"{file.path}: {field['name']} is {value!r}, its rows give {sorted(made, key=repr)[:5]}"
    yield from _check_metrics(state, file, held)


def _same(value: Any) -> Any:
    return "NaN" if isinstance(value, float) and math.isnan(value) else value


def _check_metrics(state: State, file: File, held: content.Content) -> Problems:
    types = field_types(state.metadata["schemas"])
    counts = {key: _pairs(file.record.get(key)) for key in ("value_counts", "null_value_counts")}
    lower, upper = _pairs(file.record.get("lower_bounds")), _pairs(file.record.get("upper_bounds"))
    for number, values in held.columns.items():
        for key, real in (("value_counts", len(values)), ("null_value_counts", values.count(None))):
            if counts[key].get(number, real) != real:
                yield f"{file.path}: {key} of field {number} is {counts[key][number]}, not {real}"
        known = [v for v in map(internal, values) if v is not None and v == v]
        if not known or number not in types:
            continue
        for bounds, word, outside in ((lower, "lower", _less), (upper, "upper", _greater)):
            if number in bounds:
                bound = single_value(types[number], bounds[number])
                if any(outside(value, bound) for value in known):
                    yield f"{file.path}: field {number} has values beyond its {word} bound {bound!r}"


def _pairs(records: Iterable[Any] | None) -> dict[int, Any]:
    return {one["key"]: one["value"] for one in records or ()}


def check_deletes(state: State) -> Problems:
    data = {file.path: file for file in state.data}
    vectors: Counter[str] = Counter()
    for delete in state.deletes:
        if not local(delete.path).is_file():
            continue
        if delete.is_vector:
            vectors[str(delete.record["referenced_data_file"])] += 1
            yield from _check_vector(state, delete, data)
        elif delete.content == POSITIONS:
            yield from _check_positions(state, delete, data)
    for path, count in vectors.items():
        if count > 1:
            yield f"{path}: {count} deletion vectors"


def _check_belongs(delete: File, file: File) -> Problems:
    if (delete.spec_id, delete.tuple) != (file.spec_id, file.tuple):
        yield (
            f"{delete.path}: spec {delete.spec_id} {delete.tuple}, but {file.path} that it deletes from "
            f"has spec {file.spec_id} {file.tuple}"
        )
    if delete.sequence < file.sequence:
        yield f"{delete.path}: older than {file.path} that it deletes from"


def _check_vector(state: State, delete: File, data: dict[str, File]) -> Problems:
    record, name = delete.record, f"{delete.path} at {delete.record['content_offset']}"
    if state.version < 3:
        yield f"{name}: a deletion vector in a table of version {state.version}"
    file = data.get(record["referenced_data_file"])
    if file is None:
        yield f"{name}: its data file {record['referenced_data_file']} is gone"
        return
    yield from _check_belongs(delete, file)
    held, wrong = content.vector(delete.path, record["content_offset"], record["content_size_in_bytes"])
    if wrong:
        yield f"{name}: {wrong}"
        return
    if len(held) != delete.rows:
        yield f"{name}: {len(held)} positions, its entry says {delete.rows}"
    if held and max(held) >= file.rows:
        yield f"{name}: position {max(held)} of a file with {file.rows} rows"
    footer, wrong = content.puffin_footer(delete.path)
    blobs = [b for b in footer.get("blobs", ()) if b["offset"] == record["content_offset"]]
    if wrong or len(blobs) != 1:
        yield f"{name}: {wrong or 'its blob is not in the footer'}"
        return
    about = blobs[0]["properties"]
    if blobs[0]["type"] != "deletion-vector-v1" or blobs[0]["length"] != record["content_size_in_bytes"]:
        yield f"{name}: the footer has type {blobs[0]['type']} and length {blobs[0]['length']}"
    if about.get("referenced-data-file") != file.path or about.get("cardinality") != str(delete.rows):
        yield f"{name}: the footer says {about}"


def _check_positions(state: State, delete: File, data: dict[str, File]) -> Problems:
    pairs, ids = content.positions(delete.path)
    assert state.snapshot is not None
    if not {content.PATH_ID, content.POS_ID} <= set(ids):
        yield f"{delete.path}: a position delete file with the field ids {ids}"
        return
    new = delete.status == ADDED and delete.snapshot_id == state.snapshot["snapshot-id"]
    if state.version > 2 and new:
        yield f"{delete.path}: position deletes were added to a table of version {state.version}"
    if len(pairs) != delete.rows:
        yield f"{delete.path}: {len(pairs)} rows, its entry says {delete.rows}"
    if pairs != sorted(pairs) or len(set(pairs)) != len(pairs):
        yield f"{delete.path}: not in order, or a position twice"
    paths = {path for path, _ in pairs}
    named = delete.record.get("referenced_data_file")
    if named is not None and paths != {named}:
        yield f"{delete.path}: says that it deletes from {named} alone, and does from {sorted(paths)}"
    lower, upper = (_pairs(delete.record.get(f"{word}_bounds")) for word in ("lower", "upper"))
    bounds = lower.get(content.PATH_ID), upper.get(content.PATH_ID)
    if bounds[0] is not None and bounds[0] == bounds[1] and paths != {bounds[0].decode()}:
        yield f"{delete.path}: its bounds say that it deletes from one file, and it does from {len(paths)}"
    for path, position in pairs:
        if (file := data.get(path)) is not None and position >= file.rows:
            yield f"{delete.path}: position {position} of {path} with {file.rows} rows"
    for path in sorted(paths & data.keys()):
        yield from _check_belongs(delete, data[path])


def deleted_positions(state: State) -> dict[str, set[int]]:
    """The positions that position deletes and vectors take from each data file, as Java applies them."""
    data = {file.path: file for file in state.data}
    found: dict[str, set[int]] = defaultdict(set)
    covered = {d.record["referenced_data_file"] for d in state.deletes if d.is_vector}
    for delete in state.deletes:
        if delete.is_vector:
            place = delete.record["content_offset"], delete.record["content_size_in_bytes"]
            found[delete.record["referenced_data_file"]] |= content.vector(delete.path, *place)[0]
        elif delete.content == POSITIONS:
            for path, position in content.positions(delete.path)[0]:
                file = data.get(path)
                same = file is not None and (file.spec_id, file.tuple) == (delete.spec_id, delete.tuple)
                if same and path not in covered and file.sequence <= delete.sequence:  # type: ignore[union-attr]
                    found[path].add(position)
    return dict(found)


def check_lineage(state: State) -> Problems:
    if state.version < 3:
        return
    assert state.snapshot is not None
    last = state.metadata["next-row-id"]
    for manifest in state.manifests:
        if manifest.content == DATA and manifest.record.get("first_row_id") is None:
            if state.snapshot.get("first-row-id") is not None:
                yield f"{manifest.path.name}: no first_row_id"
        elif manifest.content != DATA and manifest.record.get("first_row_id") is not None:
            yield f"{manifest.path.name}: a first_row_id for deletes"
    ranges = sorted(
        (f.first_row_id, f.first_row_id + f.rows, f.path) for f in state.data if f.first_row_id is not None
    )
    for (_, end, path), (start, _, other) in itertools.pairwise(ranges):
        if start < end:
            yield f"{path} and {other}: their row ids overlap"
    if ranges and ranges[-1][1] > last:
        yield f"{ranges[-1][2]}: row ids up to {ranges[-1][1]}, the table's next one is {last}"
    deleted, owners = deleted_positions(state), Counter[int]()
    for file in state.data:
        if file.first_row_id is None or not local(file.path).is_file():
            continue
        kept = content.read(file.path).columns.get(content.ROW_ID, [None] * file.rows)
        gone = deleted.get(file.path, ())
        owners.update(
            file.first_row_id + at if own is None else own for at, own in enumerate(kept) if at not in gone
        )
    if twice := [number for number, count in owners.items() if count > 1]:
        yield f"{len(twice)} row ids belong to more than one row, such as {min(twice)}"


def check_tidy(state: State) -> Problems:
    """What Java leaves out of a new snapshot: manifests of nothing, and deletes older than all data."""
    assert state.snapshot is not None
    for manifest in state.manifests:
        own = manifest.record["added_snapshot_id"] == state.snapshot["snapshot-id"]
        if not own and not any(file.is_live for file in manifest.files):
            yield f"{manifest.path.name}: an old manifest without live files is still listed"
    oldest = min((file.sequence for file in state.data), default=0)
    for delete in state.deletes:
        if delete.sequence < oldest:
            yield f"{delete.path}: its sequence number is {delete.sequence}, that of the oldest data {oldest}"
