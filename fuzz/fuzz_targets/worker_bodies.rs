//! `cargo fuzz run worker_bodies`; what is promised stands in `src/parsers.rs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| gpulayer_fuzz::worker_bodies(bytes));
