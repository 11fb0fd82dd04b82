"""One module writes new rows into tables. Every module is read, so that a new room is not left out."""

import re
from pathlib import Path

import strandline

PACKAGE = Path(strandline.__file__).parent
WRITES = re.compile(
    r"\.writeTo\(|\.insertInto\(|\.saveAsTable\(|\.writeStream|\.toTable\(|\.overwrite|\.createOrReplace\("
    r"|\.write\.(?!write)\w|\.add_files\(|INSERT\s+(?:INTO|OVERWRITE)|MERGE\s+INTO",
    re.IGNORECASE,
)
KNOWN = {
    "lake/jobs/stage.py": [".writeTo("],  # the one writer of rows
    "lake/jobs/load_input.py": [".writeTo("],  # into the scratch table of a load
    "lake/jobs/probe_catalog.py": ["INSERT INTO"] * 4,  # into a scratch table, see below
    "lake/metadata/catalog_rows.py": ["INSERT INTO"],  # of the catalog itself, which names tables
    "lake/spark/class_archive.py": ["INSERT INTO"],  # of a lake in a temporary folder, to warm Java up
}
STORES = ("persist/backends/sqlite/", "persist/backends/postgres/")  # tables of the event store


def writes_of(package: Path) -> dict[str, list[str]]:
    """By module: each place that writes rows of a table."""
    found = {
        path.relative_to(package).as_posix(): WRITES.findall(path.read_text(encoding="utf-8"))
        for path in sorted(package.rglob("*.py"))
    }
    return {name: places for name, places in found.items() if places and not name.startswith(STORES)}


def test_only_one_module_writes_rows_into_tables_and_one_more_into_scratch() -> None:  # F-3, L-STAMP-1
    assert writes_of(PACKAGE) == KNOWN


def test_the_probe_of_a_catalog_writes_into_scratch_alone() -> None:  # F-3, L-STAMP-1
    probe = (PACKAGE / "lake" / "jobs" / "probe_catalog.py").read_text(encoding="utf-8")
    names = {"{name}", "{self._name}", "{self._name}.branch_{_BRANCH}"}
    assert {*re.findall(r"INSERT INTO (\S+)", probe)} == names
    assert 'return f"{CATALOG}.{SCRATCH}.{quoted(table)}"' in probe  # what each of them is


def test_a_writer_in_any_other_room_is_found(tmp_path: Path) -> None:  # F-3, L-STAMP-1
    lines = {
        "backfill/frame.py": "df.writeTo(table).append()",
        "maintenance/retention/api.py": 'df.write.format("iceberg").mode("append").save(table)',
        "new_room/deep/module.py": 'spark.sql(f"""insert\n  into {table} SELECT 1""")',
        "node/node.py": "spark.sql(f'MERGE INTO {table} USING new ON false')",
        "top.py": "rows.writeStream.toTable(table)",
    }
    for name, line in lines.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(line)

    assert set(writes_of(tmp_path)) == set(lines)
