//! The tables of `gpulayer.db` as diesel sees them. `migrations/main` says what they mean.

diesel::table! {
    jobs (id) {
        id -> Binary,
        name -> Nullable<Text>,
        project -> Text,
        labels -> Text,
        priority -> Integer,
        submitted_by -> Text,
        submitted_at -> BigInt,
        queue_deadline -> Nullable<BigInt>,
        retry_of -> Nullable<Binary>,
        shape -> Text,
        parent -> Nullable<Binary>,
        array_index -> Nullable<BigInt>,
        warnings -> Text,
        spec -> Text,
    }
}

diesel::table! {
    job_standings (job_id) {
        job_id -> Binary,
        state -> Text,
        attempt -> BigInt,
        epoch -> BigInt,
        event_seq -> BigInt,
        worker -> Nullable<Binary>,
        phase -> Nullable<Text>,
        scheduled_at -> Nullable<BigInt>,
        started_at -> Nullable<BigInt>,
        ended_at -> Nullable<BigInt>,
        unreachable_since -> Nullable<BigInt>,
        cancel_requested_at -> Nullable<BigInt>,
        attempts -> Nullable<Text>,
        end_json -> Nullable<Text>,
    }
}

diesel::table! {
    job_results (job_id) {
        job_id -> Binary,
        outputs -> Text,
        undeclared -> Text,
        log_artifact -> Nullable<Binary>,
        result -> Nullable<Text>,
        warnings -> Text,
    }
}

diesel::table! {
    project_usage (project) {
        project -> Text,
        used -> BigInt,
    }
}

diesel::table! {
    explanations (digest) {
        digest -> Binary,
        explanation -> Text,
    }
}

diesel::table! {
    job_explanations (job_id) {
        job_id -> Binary,
        digest -> Binary,
    }
}

diesel::table! {
    arrays (job_id) {
        job_id -> Binary,
        first_child -> Binary,
        children -> BigInt,
        child_spec -> Text,
    }
}

diesel::table! {
    job_progress (job_id) {
        job_id -> Binary,
        progress -> Text,
    }
}

diesel::table! {
    job_waits (job_id) {
        job_id -> Binary,
        waits -> Text,
    }
}

diesel::table! {
    late_results (task_id) {
        task_id -> Binary,
        job_id -> Binary,
        outputs -> Text,
        log_artifact -> Nullable<Binary>,
    }
}

diesel::table! {
    tasks (id) {
        id -> Binary,
        job_id -> Binary,
        attempt -> BigInt,
        epoch -> BigInt,
        worker -> Binary,
        assigned_at -> BigInt,
        memory_bytes -> Nullable<BigInt>,
        gpus -> Nullable<Text>,
        weight -> BigInt,
        gang -> Nullable<Text>,
    }
}

diesel::table! {
    task_standings (task_id) {
        task_id -> Binary,
        state -> Text,
        started_at -> Nullable<BigInt>,
        ended_at -> Nullable<BigInt>,
        unreachable_since -> Nullable<BigInt>,
        stop_cause -> Nullable<Text>,
        stop_now -> Bool,
        end_json -> Nullable<Text>,
        log_artifact -> Nullable<Binary>,
        stale -> Bool,
        results -> Nullable<Text>,
    }
}

diesel::table! {
    events (position) {
        position -> BigInt,
        job_id -> Nullable<Binary>,
        seq -> BigInt,
        time -> BigInt,
        kind -> Text,
        task_id -> Nullable<Binary>,
        data -> Text,
    }
}

diesel::table! {
    used_keys (scope) {
        rowid -> BigInt,
        scope -> Binary,
        body -> Binary,
        status -> Integer,
        answer -> Text,
        used_at -> BigInt,
    }
}

diesel::table! {
    workers (id) {
        id -> Binary,
        name -> Text,
        kind -> Text,
        machine_id -> Text,
        boot_id -> Text,
        incarnation -> BigInt,
        capabilities -> Text,
        session_hash -> Nullable<Binary>,
        registered_at -> BigInt,
        registration -> Nullable<Text>,
        gone -> Bool,
        drain_since -> Nullable<BigInt>,
        drain_deadline -> Nullable<BigInt>,
    }
}

diesel::table! {
    tokens (hash) {
        hash -> Binary,
        kind -> Text,
        name -> Text,
        role -> Nullable<Text>,
        projects -> Text,
        max_priority -> Nullable<Integer>,
        submits_as -> Nullable<Text>,
        created_at -> BigInt,
        created_by -> Text,
        expires_at -> Nullable<BigInt>,
        revoked_at -> Nullable<BigInt>,
        last_used_at -> Nullable<BigInt>,
        used_for -> Nullable<Text>,
    }
}

diesel::table! {
    artifact_refs (job_id, of_results, digest) {
        job_id -> Binary,
        of_results -> Bool,
        digest -> Binary,
    }
}

diesel::table! {
    artifact_uploads (digest, owner) {
        digest -> Binary,
        owner -> Text,
        uploaded_at -> BigInt,
    }
}

diesel::table! {
    outbox (id) {
        id -> Binary,
        kind -> Text,
        payload -> Text,
        created_at -> BigInt,
    }
}

diesel::table! {
    meta (key) {
        key -> Text,
        value -> BigInt,
    }
}

diesel::table! {
    yielded_values (job_id, n) {
        job_id -> Binary,
        n -> BigInt,
        size_bytes -> BigInt,
        artifact -> Nullable<Binary>,
        text -> Nullable<Text>,
    }
}

diesel::joinable!(job_standings -> jobs (job_id));
diesel::joinable!(job_results -> jobs (job_id));
diesel::joinable!(job_explanations -> explanations (digest));
diesel::joinable!(job_waits -> jobs (job_id));
diesel::joinable!(job_progress -> jobs (job_id));
diesel::joinable!(task_standings -> tasks (task_id));
diesel::allow_tables_to_appear_in_same_query!(
    jobs,
    arrays,
    job_progress,
    job_standings,
    job_results,
    job_waits,
    explanations,
    job_explanations,
    late_results,
    tasks,
    task_standings,
    artifact_refs,
    artifact_uploads,
    events,
    yielded_values
);
