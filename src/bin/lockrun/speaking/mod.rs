//! Speaking: `messages` makes every text for stderr, and the `speaker`, a thread of its own, writes
//! it. `report` has that of the outcome, `waits` those of a wait.

pub(crate) mod busy;
pub(crate) mod messages;
pub(crate) mod repeats;
pub(crate) mod report;
pub(crate) mod speaker;
pub(crate) mod text;
pub(crate) mod waits;
pub(crate) mod words;
