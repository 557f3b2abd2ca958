//! A client and servers that show it all kinds of certificates, straight and through proxies.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod peers;
mod proxies;
mod trust;
