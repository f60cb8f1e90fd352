//! The crate's examples, run as programs.

use std::{env, process::Command};

/// The command that runs an example. `cargo test` builds the examples too; `cargo test --test NAME`
/// does not.
pub fn example(name: &str) -> Command {
    let tests = env::current_exe().unwrap();
    let examples = tests.ancestors().nth(2).unwrap().join("examples");
    let program = examples.join(name);
    assert!(program.exists(), "run `cargo build --examples` first");
    Command::new(program)
}

/// The output of an example, which runs again if it fails.
pub fn printed(command: impl Fn() -> Command) -> String {
    printed_if(command, |_| true)
}

/// The same, also unless it shows what it should: on a busy machine a lease of 300 ms may end before
/// the next step.
pub fn printed_if(command: impl Fn() -> Command, is_right: impl Fn(&str) -> bool) -> String {
    let mut last = None;
    for _ in 0..5 {
        let output = command().output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        if output.status.success() && is_right(&text) {
            return text.into_owned();
        }
        last = Some(output);
    }
    unreachable!("{last:?}")
}
