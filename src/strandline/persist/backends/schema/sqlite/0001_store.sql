-- The store. A stream has two marks that are not derived from its rows: `mark`, the last seq given out, and
-- `truncated`, up to which rows are hidden; `swept` is how far they are deleted too.
CREATE TABLE meta (name TEXT PRIMARY KEY, value) WITHOUT ROWID;

CREATE TABLE streams (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    mark INTEGER NOT NULL,
    truncated INTEGER NOT NULL,
    swept INTEGER NOT NULL
);
CREATE INDEX streams_unswept ON streams (id) WHERE swept < truncated;

CREATE TABLE types (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);

-- `id` is the stream's id in the upper bits and the seq in the lower 36: one B-tree holds the events of a stream
-- together and in order, and there is no second one to find them by. `at` has no type, so that 1, 1.0 and '1' stay apart.
CREATE TABLE events (
    id INTEGER PRIMARY KEY,
    stream INTEGER NOT NULL,
    type INTEGER NOT NULL,
    at NOT NULL,
    data TEXT NOT NULL,
    sum INTEGER NOT NULL
);
CREATE INDEX events_type ON events (type);
CREATE INDEX events_at ON events (stream, at);

CREATE TABLE keys (name TEXT PRIMARY KEY, value TEXT NOT NULL, sum INTEGER NOT NULL) WITHOUT ROWID;

-- The idempotency keys of remote clients in the order in which they came: only the newest are kept.
CREATE TABLE commit_markers (n INTEGER PRIMARY KEY AUTOINCREMENT, key TEXT NOT NULL);

-- The global order: `event` is an events.id, which may be gone by now; `$global` in `streams` has its marks. Since
-- format 2 a row may stand for a run, see 0002_runs.sql.
CREATE TABLE pointers (position INTEGER PRIMARY KEY, event INTEGER NOT NULL, at NOT NULL, sum INTEGER NOT NULL);
