//! The texts for stderr. `messages` makes each of them, and the thread of the `speaker` writes it.
//! `report` chooses the message of an outcome, and `waits` those of a wait.

pub(crate) mod busy;
pub(crate) mod messages;
pub(crate) mod repeats;
pub(crate) mod report;
pub(crate) mod speaker;
pub(crate) mod text;
pub(crate) mod waits;
pub(crate) mod words;
