-- A run of records of one task, numbered `seq` by job and `n` by task, both gapless inside a chunk.
-- The payload stands last so that looking for a chunk never reads it.
CREATE TABLE chunks (
    job_id    BLOB    NOT NULL,
    first_seq INTEGER NOT NULL,
    last_seq  INTEGER NOT NULL,
    task_id   BLOB    NOT NULL,
    first_n   INTEGER NOT NULL,
    last_n    INTEGER NOT NULL,
    payload   BLOB    NOT NULL,
    PRIMARY KEY (job_id, first_seq)
);
