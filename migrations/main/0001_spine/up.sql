-- Ids are 16-byte UUIDv7 (big-endian, so that bytes sort by time), times microseconds since 1970 UTC, JSON is TEXT.
-- What never changes and what moves are separate tables: a move rewrites a short row, not the spec, and as a
-- REPLACE of a whole row it stays in the statement cache. The spec stands last so that no list reads past it.

CREATE TABLE jobs (
    id             BLOB    NOT NULL PRIMARY KEY,
    name           TEXT,
    project        TEXT    NOT NULL,
    labels         TEXT    NOT NULL,
    priority       INTEGER NOT NULL,
    submitted_by   TEXT    NOT NULL,
    submitted_at   INTEGER NOT NULL,
    queue_deadline INTEGER,
    retry_of       BLOB,
    shape          TEXT    NOT NULL,
    -- Of a child of an array; its spec stands with the array.
    parent         BLOB,
    array_index    INTEGER,
    warnings       TEXT    NOT NULL,
    spec           TEXT    NOT NULL
) WITHOUT ROWID;
CREATE INDEX jobs_by_name ON jobs (name, id) WHERE name IS NOT NULL AND parent IS NULL;
-- Lists show parents, and must not read past a hundred thousand children.
CREATE INDEX jobs_of_their_own ON jobs (id) WHERE parent IS NULL;

CREATE TABLE job_standings (
    job_id              BLOB    NOT NULL PRIMARY KEY,
    state               TEXT    NOT NULL,
    attempt             INTEGER NOT NULL,
    epoch               INTEGER NOT NULL,
    event_seq           INTEGER NOT NULL,
    worker              BLOB,
    phase               TEXT,
    scheduled_at        INTEGER,
    started_at          INTEGER,
    ended_at            INTEGER,
    unreachable_since   INTEGER,
    cancel_requested_at INTEGER,
    -- What earlier attempts have left to the next, as JSON, so that a restart does not forget it.
    attempts            TEXT,
    end_json            TEXT
) WITHOUT ROWID;
CREATE INDEX job_standings_live ON job_standings (job_id) WHERE ended_at IS NULL;

CREATE TABLE job_results (
    job_id       BLOB NOT NULL PRIMARY KEY,
    outputs      TEXT NOT NULL,
    undeclared   TEXT NOT NULL,
    log_artifact BLOB,
    result       TEXT,
    warnings     TEXT NOT NULL
);

-- What a job's generator yielded: each value once, in whichever attempt it came first. Without text and artifact its bytes
-- are lost.
CREATE TABLE yielded_values (
    job_id     BLOB    NOT NULL,
    n          INTEGER NOT NULL,
    size_bytes INTEGER NOT NULL,
    artifact   BLOB,
    text       TEXT,
    PRIMARY KEY (job_id, n)
);

-- What the children of an array have in common. Their ids follow one another.
CREATE TABLE arrays (
    job_id      BLOB    NOT NULL PRIMARY KEY,
    first_child BLOB    NOT NULL,
    children    INTEGER NOT NULL,
    child_spec  TEXT    NOT NULL
) WITHOUT ROWID;
-- How many of its children are where, as JSON; rewritten with every commit in which one moves.
CREATE TABLE job_progress (
    job_id   BLOB NOT NULL PRIMARY KEY,
    progress TEXT NOT NULL
) WITHOUT ROWID;

-- The jobs that a queued job waits for, as a JSON list: a row only while it does.
CREATE TABLE job_waits (
    job_id BLOB NOT NULL PRIMARY KEY,
    waits  TEXT NOT NULL
) WITHOUT ROWID;

-- Who had how much of the machines, decayed, as of `usage_noted_at` in `meta`; what came after is found from the tasks.
CREATE TABLE project_usage (
    project TEXT    NOT NULL PRIMARY KEY,
    used    INTEGER NOT NULL
) WITHOUT ROWID;

-- How jobs stood to the workers when they left the queue without a place. Jobs that stood alike share a text; a row of an
-- array speaks for its children. A text goes with the last job that has it.
CREATE TABLE explanations (
    digest      BLOB NOT NULL PRIMARY KEY,
    explanation TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE job_explanations (
    job_id BLOB NOT NULL PRIMARY KEY,
    digest BLOB NOT NULL
) WITHOUT ROWID;
CREATE INDEX job_explanations_by_text ON job_explanations (digest);

-- What tasks that were given up brought back late. Kept with the job, never shown as its results.
CREATE TABLE late_results (
    task_id      BLOB NOT NULL PRIMARY KEY,
    job_id       BLOB NOT NULL,
    outputs      TEXT NOT NULL,
    log_artifact BLOB
) WITHOUT ROWID;
CREATE INDEX late_results_by_job ON late_results (job_id);

CREATE TABLE tasks (
    id          BLOB    NOT NULL PRIMARY KEY,
    job_id      BLOB    NOT NULL,
    attempt     INTEGER NOT NULL,
    epoch       INTEGER NOT NULL,
    worker      BLOB    NOT NULL,
    assigned_at INTEGER NOT NULL,
    memory_bytes INTEGER,
    gpus        TEXT,
    weight      INTEGER NOT NULL,
    -- Its rank in its gang, and its peers, as JSON.
    gang        TEXT
) WITHOUT ROWID;
CREATE INDEX tasks_by_job ON tasks (job_id);

CREATE TABLE task_standings (
    task_id    BLOB    NOT NULL PRIMARY KEY,
    state      TEXT    NOT NULL,
    started_at INTEGER,
    ended_at   INTEGER,
    unreachable_since INTEGER,
    stop_cause TEXT,
    stop_now   INTEGER NOT NULL,
    end_json   TEXT,
    log_artifact BLOB,
    stale      INTEGER NOT NULL,
    -- What a task of a gang brought back, as JSON, until all of them are over.
    results    TEXT
) WITHOUT ROWID;
-- What was held since it was noted who had how much.
CREATE INDEX task_standings_ended ON task_standings (ended_at) WHERE ended_at IS NOT NULL;
-- Ended while the worker may still hold the process tree: rare. Tasks that have not ended are found by their job.
CREATE INDEX task_standings_stale ON task_standings (task_id) WHERE stale;

-- `position` is the rowid, so events are only ever appended; the supervisor assigns both numbers. Without a job: what
-- was done to the server itself, with `seq` 0.
CREATE TABLE events (
    position INTEGER NOT NULL PRIMARY KEY,
    job_id   BLOB,
    seq      INTEGER NOT NULL,
    time     INTEGER NOT NULL,
    kind     TEXT    NOT NULL,
    task_id  BLOB,
    data     TEXT    NOT NULL,
    UNIQUE (job_id, seq)
);

-- Rows lie in the order of use, so that pruning reads from the old end.
CREATE TABLE used_keys (
    scope   BLOB    NOT NULL PRIMARY KEY,
    body    BLOB    NOT NULL,
    status  INTEGER NOT NULL,
    answer  TEXT    NOT NULL,
    used_at INTEGER NOT NULL
);

CREATE TABLE workers (
    id            BLOB    NOT NULL PRIMARY KEY,
    name          TEXT    NOT NULL,
    kind          TEXT    NOT NULL,
    machine_id    TEXT    NOT NULL,
    boot_id       TEXT    NOT NULL,
    incarnation   INTEGER NOT NULL,
    capabilities  TEXT    NOT NULL,
    session_hash  BLOB,
    registered_at INTEGER NOT NULL,
    registration  TEXT,
    gone          INTEGER NOT NULL,
    drain_since   INTEGER,
    drain_deadline INTEGER
) WITHOUT ROWID;

-- Revoked and expired ones stay: whoever still uses one is told so, and a seed file brings none of them back.
-- `submits_as`: `submitted_by` of its jobs, when that is not its name. `used_for`: what an instance token registered.
CREATE TABLE tokens (
    hash         BLOB    NOT NULL PRIMARY KEY,
    kind         TEXT    NOT NULL,
    name         TEXT    NOT NULL,
    role         TEXT,
    projects     TEXT    NOT NULL,
    max_priority INTEGER,
    submits_as   TEXT,
    created_at   INTEGER NOT NULL,
    created_by   TEXT    NOT NULL,
    expires_at   INTEGER,
    revoked_at   INTEGER,
    last_used_at INTEGER,
    used_for     TEXT
) WITHOUT ROWID;

-- Which artifacts a job keeps alive; `of_results` = by the results of its last attempt, which take the place of those
-- before; else by its spec, or as the log of one of its tasks.
CREATE TABLE artifact_refs (
    job_id     BLOB    NOT NULL,
    of_results INTEGER NOT NULL,
    digest     BLOB    NOT NULL,
    PRIMARY KEY (job_id, of_results, digest)
) WITHOUT ROWID;
CREATE INDEX artifact_refs_by_digest ON artifact_refs (digest);

-- Who sent the bytes of an artifact that no job of theirs names yet: `project:NAME`, or `worker:ID`. Without rows for
-- whoever may see everything. Pruned after a week: what is still wanted by then is in `artifact_refs`.
CREATE TABLE artifact_uploads (
    digest      BLOB    NOT NULL,
    owner       TEXT    NOT NULL,
    uploaded_at INTEGER NOT NULL,
    PRIMARY KEY (digest, owner)
) WITHOUT ROWID;
CREATE INDEX artifact_uploads_by_age ON artifact_uploads (uploaded_at);

-- Effects on the outside that must survive a crash: delivered at least once, with this id.
CREATE TABLE outbox (
    id         BLOB    NOT NULL PRIMARY KEY,
    kind       TEXT    NOT NULL,
    payload    TEXT    NOT NULL,
    created_at INTEGER NOT NULL
) WITHOUT ROWID;

-- `leader_term`: the term a write must carry. `last_position`: floor of the event numbering, kept when the newest
-- events are purged. `min_position`: the feed may have gaps at and below it.
CREATE TABLE meta (
    key   TEXT    NOT NULL PRIMARY KEY,
    value INTEGER NOT NULL
) WITHOUT ROWID;
INSERT INTO meta (key, value) VALUES ('leader_term', 1), ('last_position', 0), ('min_position', 0);
