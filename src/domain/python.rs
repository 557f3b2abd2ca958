//! Python environments of tasks: what one is made of and called, how `uv` makes it, and how a program finds it. Pure:
//! whoever builds one reads the files and runs the steps.

pub mod recipe;
pub mod refusal;
pub mod request;
pub mod steps;
pub mod surroundings;

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::contract::quantity::Seconds;

pub use recipe::{Contents, Key, LockKind, Recipe, lock_kind};
pub use refusal::will_repeat;
pub use request::satisfies;
pub use steps::{Step, find_interpreter, install_interpreter, steps};
pub use surroundings::{Built, Change, surroundings};

/// Begins the names of variables that steer `uv`.
pub const OF_UV: &str = "UV_";
/// Begins the last line of a build that failed; the rest of it says why.
pub const CLOSING: &str = "gpulayer: no Python environment: ";
/// Begins that reason when the build was ended for its time limit.
pub const TOO_LONG: &str = "the build was not done after ";

/// How environments are built.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Building {
    /// The `uv` that does it; `None` = the one that a task's `PATH` leads to.
    pub uv: Option<PathBuf>,
    /// How long it may take.
    pub timeout: Seconds,
    /// Interpreters that the worker's owner named, which go first.
    pub pythons: Vec<PathBuf>,
}

impl Default for Building {
    fn default() -> Self {
        Self { uv: None, timeout: Seconds::new(3600), pythons: Vec::new() }
    }
}

/// What an interpreter says of itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interpreter {
    /// Its program, absolute.
    pub executable: PathBuf,
    /// The whole text of its version, which differs between builds.
    pub version: String,
    /// `cpython-311-x86_64-linux-gnu`: what compiled modules have to fit.
    pub abi: String,
    /// `linux-x86_64`.
    pub platform: String,
    /// Where its packages lie, when it is that of a virtual environment: such an environment is not the system's, and
    /// tasks are to see its packages all the same.
    #[serde(default)]
    pub packages_of_environment: Vec<PathBuf>,
}
