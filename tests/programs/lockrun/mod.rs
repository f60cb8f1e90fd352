//! The program `lockrun` as a user runs it.

mod causes;
mod ending;
mod interrupted;
mod once;
mod operator;
mod outage;
mod tool;
mod turns;
