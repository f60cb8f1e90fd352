//! The examples of this crate as programs.

use std::{env, process::Command};

/// An example as a command. `cargo test` builds the examples beside the tests; `cargo test --test NAME` does not.
pub fn example(name: &str) -> Command {
    let tests = env::current_exe().unwrap();
    let examples = tests.ancestors().nth(2).unwrap().join("examples");
    let program = examples.join(name);
    assert!(program.exists(), "run `cargo build --examples` first");
    Command::new(program)
}
