//! Floor 4: the actors. Each owns a mailbox and some state, asks the domain what to do, and does exactly that.
//! They know each other's messages, never each other.

pub mod messages;
