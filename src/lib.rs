//! GPUlayer: a self-hosted layer that runs a command on any machine and GPU its owner can reach, and brings
//! back logs, outputs and results. The floors, from the bottom up: `contract`, `domain`, the outside world
//! (`store`, `journal`, `artifacts`, `process`, `client`, `clock`), `actors`, the edge (`http`, `cli`,
//! `worker`), and the root (`daemon`, `config`, `telemetry`). Imports point down only.

pub mod contract;
pub mod domain;

pub mod artifacts;
pub mod client;
pub mod clock;
pub mod credentials;
pub mod durability;
pub mod environments;
pub mod frameworks;
pub mod gpu;
pub mod journal;
pub mod process;
pub mod recording;
pub mod short_file;
pub mod store;
pub mod tls;

pub mod actors;

pub mod cli;
pub mod http;
pub mod worker;

pub mod config;
pub mod daemon;
pub mod telemetry;
