//! The table of `logs.db` as diesel sees it. `migrations/logs` says what it means.

diesel::table! {
    chunks (job_id, first_seq) {
        job_id -> Binary,
        first_seq -> BigInt,
        last_seq -> BigInt,
        task_id -> Binary,
        first_n -> BigInt,
        last_n -> BigInt,
        payload -> Binary,
    }
}
