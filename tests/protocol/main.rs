//! What goes over the wire stays what it was: golden files of protocol 1 and of the client API, and conversations
//! that older versions had, held with this one.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod goldens;
