//! Decides, from values alone, when the command is told to end, when it is killed, and the exit
//! code.

pub(crate) mod ending;
pub(crate) mod loss;
pub(crate) mod outcome;
