//! The crate's examples, run as programs.

use std::{cell::RefCell, env, process::Command};

use super::wait::unless_halted;

/// The command that runs an example. `cargo test` builds the examples too; `cargo test --test NAME`
/// does not.
pub fn example(name: &str) -> Command {
    let tests = env::current_exe().unwrap();
    let examples = tests.ancestors().nth(2).unwrap().join("examples");
    let program = examples.join(name);
    assert!(program.exists(), "run `cargo build --examples` first");
    Command::new(program)
}

/// The output of an example. Runs it again if the machine stalled, because then it may not show its
/// effect.
pub fn printed(command: impl Fn() -> Command) -> String {
    let printed = RefCell::default();
    unless_halted(|| {
        let output = command().output().unwrap();
        assert!(output.status.success(), "{output:?}");
        *printed.borrow_mut() = String::from_utf8(output.stdout).unwrap();
    });
    printed.into_inner()
}
