//! Credentials: what each may do (`grant`), what a request for a new one may ask (`request`), and what follows from
//! those that live (`table`). CONTRACT, Credentials, says the same for people.

pub mod audit;
pub mod grant;
pub mod hiding;
pub mod request;
pub mod table;

pub use audit::Author;
pub use grant::{Denied, Grant, JobAct, OwnedJob, Projects};
