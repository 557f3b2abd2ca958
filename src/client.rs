//! The calls of a client or worker to a server, and what carries them.

pub mod worker_channel;
