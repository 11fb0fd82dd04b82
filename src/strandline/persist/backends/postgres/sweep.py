"""Upkeep: deleting what truncation hides, in small steps; vacuum; sizes."""

from typing import Final

from psycopg import sql
from psycopg.types.numeric import Int8

from strandline.persist.backend import Damage
from strandline.persist.backends.postgres.connection import Connection

STEP_ROWS: Final = 1000
TABLES: Final = ("event", "kv", "stream", "in_line", "pointer", "meta")


def sweep(connection: Connection) -> None:
    """Delete every row that a truncation hides. Each step is a short transaction, so that appends go on.

    It takes up whatever a crash left of earlier ones: `swept` stands behind until all is gone.
    """
    query = "select id, swept, truncated from stream where swept < truncated order by id limit 100"
    while unswept := connection.execute(query, binary=True).fetchall():
        for stream_id, swept, truncated in unswept:
            _sweep_stream(connection, stream_id, swept, truncated)


def _sweep_stream(connection: Connection, stream_id: int, swept: int, truncated: int) -> None:
    delete = "delete from event where stream_id = %b and seq > %b and seq <= %b"
    if stream_id == 0:
        delete = "delete from pointer where %b = 0 and position > %b and position <= %b"
    while swept < truncated:
        step = min(swept + STEP_ROWS, truncated)
        connection.execute(delete, [Int8(stream_id), Int8(swept), Int8(step)])
        swept = step
    connection.execute(
        "update stream set swept = %b where id = %b and swept < %b",
        [Int8(swept), Int8(stream_id), Int8(swept)],
    )


def vacuum(connection: Connection, *, rewrite: bool) -> None:
    """Give back the space of dead rows. A rewrite locks each table and leaves none of their bytes in it."""
    verb = "vacuum (full, analyze) {}" if rewrite else "vacuum (analyze) {}"
    for table in TABLES:
        connection.execute(sql.SQL(verb).format(sql.Identifier(table)))


def orphans(connection: Connection) -> list[Damage]:
    """Events whose stream is gone: no dump of the streams would come by them."""
    query = """
        select stream_id, min(seq), count(*) from event e
        where not exists (select from stream s where s.id = e.stream_id) group by stream_id order by stream_id
    """
    return [
        Damage(
            "mark",
            f"stream number {stream_id}",
            0,
            f"it is missing, {count:,} events from seq {seq} on have it",
        )
        for stream_id, seq, count in connection.execute(query)
    ]


def counts(connection: Connection) -> tuple[int, int, int]:
    """Public streams, the events ever appended to them, bytes of all tables and indexes."""
    sizes = " + ".join(f"pg_total_relation_size('{table}')" for table in TABLES)
    row = connection.execute(
        f"""
        select count(*), coalesce(sum(last_seq), 0)::bigint, ({sizes})::bigint
        from stream where last_seq > 0 and (name < '$' or name >= '%')
        """
    ).fetchone()
    assert row is not None
    return row[0], row[1], row[2]
