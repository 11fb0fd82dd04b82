"""The bugs that planted.py plants: a piece of source text, found once, and what stands in its place."""

from typing import Final, NamedTuple

PERSIST: Final = "src/strandline/persist"
SQLITE: Final = f"{PERSIST}/backends/sqlite/backend.py"
SQLITE_HANDLE: Final = f"{PERSIST}/backends/sqlite/handle.py"
SQLITE_TRANSACTION: Final = f"{PERSIST}/backends/sqlite/transaction.py"
SQLITE_FILE: Final = f"{PERSIST}/backends/sqlite/file.py"
POSTGRES: Final = f"{PERSIST}/backends/postgres/backend.py"
POSTGRES_SQL: Final = f"{PERSIST}/backends/schema/postgres/0001_store.sql"
REMOTE: Final = f"{PERSIST}/backends/remote.py"
COMMIT: Final = f"{PERSIST}/core/commit.py"
GROUP: Final = f"{PERSIST}/core/group_commit.py"


class Bug(NamedTuple):
    name: str
    file: str
    text: str
    instead: str
    caught_by: str  # what pytest is asked for; or `conformance SUITE`, on a store in memory
    says: str = ""  # a piece of what is told when the test is red for this reason


BUGS: Final = (
    Bug(
        "a commit is not synced",
        SQLITE_FILE,
        'connection.pragma("synchronous", synchronous)',
        'connection.pragma("synchronous", "OFF")',
        "tests/faults/test_disk.py -k power_cut_at_any",
        says="cut after op",
    ),
    Bug(
        "a commit is synced at checkpoints only",
        SQLITE_FILE,
        'connection.pragma("synchronous", synchronous)',
        'connection.pragma("synchronous", "NORMAL")',
        "tests/faults/test_disk.py -k power_cut_at_any",
        says="acknowledged steps it holds",
    ),
    Bug(
        "with NORMAL nothing is synced, not even a checkpoint",
        SQLITE_FILE,
        'connection.pragma("synchronous", synchronous)',
        'connection.pragma("synchronous", "OFF" if synchronous == "NORMAL" else synchronous)',
        "tests/faults/test_disk.py -k a_prefix_of_the_commits",
    ),
    Bug(
        "with NORMAL the log is left as it is when the store is closed",
        SQLITE_HANDLE,
        "            if not self._has_old_log:\n                _let_go_of_log(self._writer)",
        '            if not self._has_old_log and synchronous != "NORMAL":\n'
        "                _let_go_of_log(self._writer)",
        "tests/faults/test_disk.py -k what_the_log_was_copied_with",
    ),
    Bug(
        "a scrub leaves the log as it is",
        SQLITE,
        "PRAGMA wal_checkpoint(TRUNCATE)",
        "PRAGMA wal_checkpoint(NOOP)",
        "tests/faults/test_disk.py -k what_the_log_was_copied_with",
    ),
    Bug(
        "a commit that is shared is not synced",
        SQLITE,
        "            outcomes = self._in_transaction(decided)\n",
        '            self._writer.pragma("synchronous", "NORMAL" if len(group) > 1 else "FULL")\n'
        "            outcomes = self._in_transaction(decided)\n",
        "tests/faults/test_disk.py -k commit_that_is_shared",
    ),
    Bug(
        "those who wait are answered before the commit that they share",
        GROUP,
        "            outcomes = self._run([ticket.prepared for ticket in group])\n",
        "            from strandline.persist.backends.sqlite import backend\n"
        "            decided, waiting = backend._decided, iter(group)\n"
        "            def answered(tx, prepared):\n"
        "                ticket, outcome = next(waiting), decided(tx, prepared)\n"
        "                if ticket is not leader:\n"
        "                    ticket.outcome, ticket.answered = outcome, True\n"
        "                    ticket.turn.release()\n"
        "                return outcome\n"
        "            backend._decided = answered\n"
        "            try:\n"
        "                outcomes = self._run([ticket.prepared for ticket in group])\n"
        "            finally:\n"
        "                backend._decided = decided\n"
        "            outcomes, group = outcomes[:1], group[:1]\n",
        "tests/faults/test_disk.py -k who_commits_with_others",
    ),
    Bug(
        "a store goes on after a sync that failed",
        SQLITE_HANDLE,
        'self._poisoned = f"a commit failed with {error}"',
        "pass",
        "tests/faults/test_disk.py -k nothing_pretends",
        says="it went on after a commit whose outcome it did not know",
    ),
    Bug(
        "a sync that failed is told as a commit that was not made",
        SQLITE_HANDLE,
        "if isinstance(error, apsw.BusyError) or (",
        "if isinstance(error, (apsw.BusyError, apsw.IOError)) or (",
        "tests/faults/test_disk.py -k nothing_pretends",
        says="it said that nothing was written, and it was",
    ),
    Bug(
        "a full disk is said to have taken nothing, whatever it took",
        SQLITE_HANDLE,
        "(isinstance(error, apsw.FullError) and self._wrote_nothing())",
        "isinstance(error, apsw.FullError)",
        "tests/persist/backends/sqlite/test_sqlite_writing.py -k took_the_end",
        says="the disk is full; nothing was written",
    ),
    Bug(
        "what is committed stands behind a log that was left",
        SQLITE,
        "if self._has_old_log:",
        "if False:",
        "tests/faults/test_disk.py -k failed_sync_and_a_kill",
        says="what the store acknowledged after the error is",
    ),
    Bug(
        "the log that was left is written again but not synced",
        SQLITE_FILE,
        "        os.fsync(log)\n",
        "",
        "tests/faults/test_disk.py -k failed_sync_and_a_kill",
    ),
    Bug(
        "a scrub copies a log that was left into the file as it is",
        SQLITE,
        "        self._check_usable()\n        self._sweep()\n",
        "        self._check_usable()\n",
        "tests/faults/test_disk.py -k failed_sync_and_a_kill",
    ),
    Bug(
        "a log that was left is copied into the file as it is",
        SQLITE_HANDLE,
        "            if not self._has_old_log:\n                _let_go_of_log(self._writer)",
        "            _let_go_of_log(self._writer)",
        "tests/faults/test_disk.py -k failed_sync_and_a_kill",
        says="it cannot be used",
    ),
    Bug(
        "a log that cannot be written again raises what the system raises",
        SQLITE_HANDLE,
        "            write_log_again(self._path)\n        except OSError as error:",
        "            write_log_again(self._path)\n        except FileNotFoundError as error:",
        "tests/faults/test_disk.py -k a_log_is_written_again",
    ),
    Bug(
        "a file that cannot be made raises what SQLite raises",
        SQLITE_FILE,
        "if isinstance(error, (apsw.Error, OSError, ValueError)):",
        "if isinstance(error, (apsw.IOError, OSError, ValueError)):",
        "tests/faults/test_disk.py -k cannot_be_made",
    ),
    Bug(
        "readers do not check the pages",
        SQLITE_HANDLE,
        "connection = connect(self._path, **self._options)  # type: ignore[arg-type]  # as given to us",
        "connection = connect(self._path, **self._options)  # type: ignore[arg-type]\n"
        '            connection.pragma("checksum_verification", "off")',
        "tests/faults/test_flips.py -k of_a_store",
        says=" of the file: ",
    ),
    Bug(
        "verify does not look at the pages",
        SQLITE,
        "return found + self._damaged_pages()",
        "return found",
        "tests/faults/test_flips.py -k of_a_store",
        says="and verify nothing",
    ),
    Bug(
        "the mark is the highest row",
        SQLITE_TRANSACTION,
        '"SELECT id, mark, truncated FROM streams WHERE name = ?"',
        "\"SELECT id, CASE name WHEN '$global' THEN mark ELSE coalesce((SELECT max(e.id)\"\n"
        '            " & ((1 << 36) - 1) FROM events e WHERE e.stream = streams.id), 0) END, truncated"\n'
        '            " FROM streams WHERE name = ?"',
        "tests/faults/test_lines.py -k mark",
        says="the next event has seq 1",
    ),
    Bug(
        "a mark is remembered though another has moved it",
        SQLITE_TRANSACTION,
        "if version != self.version:",
        "if self.version < 0:",
        "tests/persist/backends/sqlite/test_sqlite_writing.py -k moved_is_read_anew",
        says="is_conflict([Event(",
    ),
    Bug(
        "a transaction takes its lock late",
        SQLITE,
        'self._writer.execute("BEGIN IMMEDIATE")',
        'self._writer.execute("BEGIN DEFERRED")',
        "tests/faults/test_linear.py -k processes_have_an_order[sqlite]",
        says="calls were refused",
    ),
    Bug(
        "a key that is expected is read before the lock is taken",
        SQLITE,
        "        def decided(tx: SqliteTransaction) -> list[Outcome | BaseException]:\n",
        "        names = [e.key for p in group for e in p.preconditions if hasattr(e, 'key')]\n"
        "        query = 'SELECT value FROM keys WHERE name = ?'\n"
        "        with self._reader() as early:\n"
        "            texts = {name: early.execute(query, (name,)).get for name in names}\n"
        "        def decided(tx):\n"
        "            tx._texts |= texts\n",
        "tests/faults/test_linear.py -k processes_have_an_order[sqlite]",
        says="has no order",
    ),
    Bug(
        "what was undone leaves its names behind",
        SQLITE,
        "        self._names.clear()\n        if self._is_inherited:",
        "        if self._is_inherited:",
        "tests/persist/backends/sqlite/test_sqlite_writing.py -k leaves_no_names",
        says="Event(stream='mine'",
    ),
    Bug(
        "a sweep goes one too far",
        SQLITE,
        "until = min(truncated, swept + SWEEP_ROWS)",
        "until = min(truncated, swept + SWEEP_ROWS) + 1",
        "tests/faults/test_disk.py -k power_cut_at_any",
        says="it is missing",
    ),
    Bug(
        "what is truncated and not swept yet is shown",
        f"{PERSIST}/backends/sqlite/read.py",
        "id BETWEEN max(?, {low + 1} + (SELECT truncated FROM streams WHERE id = {stream})) AND ?",
        "id BETWEEN ? AND ?",
        "tests/persist/backends/sqlite/test_sqlite_erasure.py -k leaves_unswept_is_hidden",
        says="(10, [1, 2, 3",
    ),
    Bug(
        "a file that was replaced is written on",
        SQLITE,
        '            self._refuse_if_replaced()\n            reach("commit.before")',
        '            reach("commit.before")',
        "tests/persist/backends/sqlite/test_sqlite_edges.py -k no_longer_there",
        says="DID NOT RAISE StoreUnavailable",
    ),
    Bug(
        "deleted bytes stay in the file",
        SQLITE_FILE,
        'connection.pragma("secure_delete", "on")',
        'connection.pragma("secure_delete", "off")',
        "tests/persist/backends/sqlite/test_sqlite_erasure.py -k erased_bytes",
        says="['store.db'] == []",
    ),
    Bug(
        "a child after a fork uses the store of its parent",
        SQLITE_HANDLE,
        "return os.getpid() != self._pid",
        "return False",
        "tests/persist/backends/sqlite/test_sqlite_writing.py -k after_a_fork",
        says=" == 4",
    ),
    Bug(
        "a key is known only while it is among the newest",
        SQLITE_TRANSACTION,
        "if scope == COMMIT_SCOPE:",
        "if scope:",
        "tests/persist/test_commit.py -k only_the_newest_markers_are_kept[sqlite]",
        says="$once/s/of a stream",
    ),
    Bug(
        "a key is known for a day",
        f"{PERSIST}/reserved.py",
        'return "/".join((space, *map(_part, names)))',
        "day = __import__('time').time() // 86_400 if space == ONCE and len(names) == 2 else None\n"
        '    return "/".join((space, *map(_part, names))) + (f"@{day}" if day else "")',
        "tests/persist/test_clock.py -k key_is_known",
        says="False = seen",
    ),
    Bug(
        "a key that is known is not looked at for what it was",
        COMMIT,
        'if marker["digest"] == prepared.digest:',
        "if True:",
        "tests/persist/test_commit.py -k key_reused",
        says="KEY_REUSED",
    ),
    Bug(
        "an idempotency key is not kept",
        COMMIT,
        "    if prepared.once is not None:\n        value =",
        "    if False:\n        value =",
        "tests/faults/test_lines.py -k over_http",
        says="commit 1 came back as [Event(stream='s', seq=2",
    ),
    Bug(
        "an expectation is met by any higher mark",
        COMMIT,
        "if actual != expectation.seq:",
        "if actual < expectation.seq:",
        "tests/faults/test_linear.py -k threads_have_an_order[memory]",
        says="has no order",
    ),
    Bug(
        "values are compared as Python compares them",
        COMMIT,
        "    if found == expected:\n        return None",
        "    if found == expected or (found and expected and decode(found) == decode(expected)):\n"
        "        return None",
        "tests/persist/test_commit.py -k compared_on_its_encoding",
        says="assert False is (0.0 is not 0)",
    ),
    Bug(
        "an update does not expect what it read",
        f"{PERSIST}/features/kv.py",
        "store.commit([ExpectKey(key, current)], [Put(key, value)])",
        "store.commit([], [Put(key, value)])",
        "tests/persist/test_processes.py -k increments",
        says="== (8 * 40)",
    ),
    Bug(
        "a truncation in memory forgets the mark",
        f"{PERSIST}/backends/memory.py",
        "        target.truncated_through = n\n",
        "        target.truncated_through = n\n        target.last_seq = max(target.rows, default=0)\n",
        "tests/faults/test_lines.py -k mark",
        says="the mark and the events are [0,",
    ),
    Bug(
        "a compaction truncates before it keeps its snapshot",
        f"{PERSIST}/features/compact.py",
        "    state = checkpoint(b, stream, name, step, seed, version=version, upcasters=upcasters)\n"
        '    reach("compact.checkpointed")\n'
        "    _truncate_covered(atomic(b), stream, name)\n",
        "    from strandline.persist.features.snapshot import replay, snapshot_save\n"
        "    state = replay(b, stream, name, step, seed, version=version, upcasters=upcasters)\n"
        "    b.truncate_through(stream, state.seq)\n"
        '    reach("compact.checkpointed")\n'
        "    snapshot_save(b, name, state, stream=stream, version=version)\n",
        "tests/crash/test_kill.py -k compaction_killed_at_any",
        says="HistoryGap",
    ),
    Bug(
        "a compaction goes past a hold",
        f"{PERSIST}/features/hold.py",
        "floor = min([at_most, *(seq for _, seq in _registered(b, stream))])",
        "floor = at_most",
        "conformance compaction",
        says="compaction/a-hold-holds-compaction-back",
    ),
    Bug(
        "a snapshot goes back",
        f"{PERSIST}/features/snapshot.py",
        'if kept is not None and kept["state"].seq > save.state.seq:',
        "if False:",
        "conformance snapshot",
        says="snapshot/a-lower-save-is-not-written",
    ),
    Bug(
        "an erasure leaves its bytes in the log",
        f"{PERSIST}/features/erasure.py",
        "    store.scrub()\n    return outcome[0]",
        "    return outcome[0]",
        "tests/persist/backends/sqlite/test_sqlite_erasure.py -k erased_bytes",
        says="['store.db-wal'] == []",
    ),
    Bug(
        "a restore is not synced",
        SQLITE,
        "        source = iter(records)\n",
        '        source = iter(records)\n        self._writer.pragma("synchronous", "OFF")\n',
        "tests/faults/test_disk.py -k restore_is_wholly",
    ),
    Bug(
        "a restore commits each of its chunks",
        SQLITE,
        "                loader.take(chunk)\n",
        "                loader.take(chunk)\n"
        '                self._writer.execute("COMMIT")\n'
        '                self._writer.execute("BEGIN IMMEDIATE")\n',
        "tests/faults/test_disk.py -k restore_is_wholly",
    ),
    Bug(
        "a backup is not synced",
        f"{PERSIST}/features/upkeep.py",
        "    copy = SqliteBackend(partial)\n",
        '    copy = SqliteBackend(partial)\n    copy._writer.pragma("synchronous", "OFF")\n',
        "tests/faults/test_disk.py -k backup_is_whole",
    ),
    Bug(
        "the name of a backup is not synced",
        f"{PERSIST}/features/upkeep.py",
        "        sync_folder(target.parent)\n",
        "",
        "tests/faults/test_disk.py -k backup_is_whole",
    ),
    Bug(
        "a cursor goes on in a restored store",
        f"{PERSIST}/features/consumer.py",
        'if kept["lineage"] != lineage:',
        "if False:",
        "tests/persist/backends/sqlite/test_sqlite_backup.py -k but_for_its_lineage",
        says="DID NOT RAISE LineageMismatch",
    ),
    Bug(
        "a backup is restored unchecked",
        f"{PERSIST}/features/upkeep.py",
        "target.load(checked(copy.dump()))",
        "target.load(copy.dump())",
        "tests/persist/backends/sqlite/test_sqlite_backup.py -k backup_that_was_changed",
        says="Record(kind=",
    ),
    Bug(
        "positions are given out by two at once",
        f"{PERSIST}/backends/schema/postgres/0002_runs.sql",
        "    perform lock_positions();\n    select last_seq into head",
        "    select last_seq into head",
        "tests/faults/test_gap.py -k six_writers",
        says='"pointer_pkey"',
    ),
    Bug(
        "positions are given out by a sequence",
        f"{PERSIST}/backends/postgres/block.py",
        "insert into in_line (stream_id, seq, count, crc, at_int, at_real, at_text)\n"
        "            select head.id, head.before + v.place, v.count, v.crc, v.at_int, v.at_real, v.at_text\n"
        "            from head, {line}\n",
        "insert into pointer (position, stream_id, seq, sum, at_int, at_real, at_text)\n"
        "            select n, id, seq, crc + 3 * seq + n, at_int, at_real, at_text from (\n"
        "                select nextval('marker_nr') as n, head.id, head.before + v.place + more as seq,\n"
        "                    v.crc, v.at_int, v.at_real, v.at_text\n"
        "                from head, {line} cross join lateral generate_series(0, v.count - 1) more) p\n",
        "tests/faults/test_gap.py -k six_writers",
        says="after position",
    ),
    Bug(
        "of what was acknowledged one event in a hundred is not there",
        f"{PERSIST}/backends/postgres/block.py",
        "v.at_int, v.at_real, v.type, v.at_text, v.data\n            from head, {events}\n",
        "v.at_int, v.at_real, v.type, v.at_text, v.data\n            from head, {events}\n"
        "            where (head.before + v.place) % 100 <> 0\n",
        "tests/faults/test_gap.py -k six_writers",
        says="events acknowledged",
    ),
    Bug(
        "an expectation is looked at before the stream is locked",
        f"{PERSIST}/backends/postgres/block.py",
        "and s.last_seq = %(expected)b and",
        "and (select last_seq from stream where name = %(stream)b) = %(expected)b and",
        "tests/persist/backends/postgres/test_postgres_edges.py -k once_the_stream_is_locked",
        says="reason='STALE'",
    ),
    Bug(
        "an expectation is looked at before the stream is locked, by many at once",
        f"{PERSIST}/backends/postgres/block.py",
        "and s.last_seq = %(expected)b and",
        "and (select last_seq from stream, pg_sleep(0.001) where name = %(stream)b) = %(expected)b and",
        "tests/faults/test_linear.py -k processes_have_an_order[postgres]",
        says="has no order",
    ),
    Bug(
        "a key that is expected is read without its lock",
        POSTGRES_SQL,
        "from kv k where key = keys[1] for update;",
        "from kv k where key = keys[1];\n            perform pg_sleep(0.001);",
        "tests/faults/test_linear.py -k processes_have_an_order[postgres]",
        says="has no order",
    ),
    Bug(
        "a session takes the durability that the server has",
        f"{PERSIST}/backends/postgres/pool.py",
        "select set_config('synchronous_commit', 'on', false)\n",
        "select set_config('synchronous_commit', 'off', false)\n",
        "tests/persist/backends/postgres/test_postgres_opening.py -k session_flushes",
        says="('off',)",
    ),
    Bug(
        "a connection that broke in a commit means that nothing was written",
        POSTGRES,
        'raise OutcomeUnknown("the connection broke in the commit", once=None) from error',
        "raise_translated(error)",
        "tests/faults/test_lines.py -k of_postgres",
        says="StoreUnavailable: Postgres failed",
    ),
    Bug(
        "a request is repeated without a key",
        REMOTE,
        "body = commit_body(prepared)",
        "body = commit_body(prepare(preconditions, writes, None, is_sent=True))",
        "tests/faults/test_lines.py -k over_http",
        says="commit 1 came back as [Event(stream='s', seq=2",
    ),
    Bug(
        "a lost answer means that nothing was written",
        REMOTE,
        "may_be_stored |= lost.sent and is_write",
        "pass",
        "tests/faults/test_lines.py -k stalls_past",
        says="told: store_unavailable",
    ),
    Bug(
        "the log that was left is written again and synced, its name is not",
        SQLITE_FILE,
        "    sync_folder(path.parent)  # who made the log may have died before its name was durable\n",
        "",
        "tests/faults/test_disk.py -k failed_sync_and_a_kill",
    ),
    Bug(
        "a child leaves open what it has inherited",
        f"{PERSIST}/backends/sqlite/fork.py",
        "        _close(connection, file)\n",
        "        pass\n",
        "tests/persist/backends/sqlite/test_sqlite_fork.py -k acknowledged_after_a_fork",
    ),
    Bug(
        "what an interrupted undoing leaves stays",
        SQLITE,
        "        self._settle()\n        self._check_usable()\n        self._is_begun",
        "        self._check_usable()\n        self._is_begun",
        "tests/persist/backends/sqlite/test_sqlite_interrupted.py -k undone_by_the_next",
    ),
)
