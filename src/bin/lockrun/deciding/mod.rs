//! Deciding, from values alone: when the command is told to end and killed, the exit code.

pub(crate) mod ending;
pub(crate) mod loss;
pub(crate) mod outcome;
