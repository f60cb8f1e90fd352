//! The program `lockrun` as a user runs it.

mod causes;
mod ending;
#[cfg(target_os = "linux")]
mod family;
mod flags;
#[cfg(target_os = "linux")]
mod group;
mod interrupted;
mod list;
mod once;
mod operator;
mod outage;
mod permits;
mod probe;
mod schedules;
mod several;
mod tool;
mod turns;
#[cfg(target_os = "linux")]
mod unheard;
mod wrapper;
