//! The examples of this crate as programs.

use std::{env, process::Command};

/// An example as a command: `cargo test` builds them beside the tests.
pub fn example(name: &str) -> Command {
    let mut directory = env::current_exe().unwrap_or_default();
    directory.pop();
    directory.pop();
    Command::new(directory.join("examples").join(name))
}
