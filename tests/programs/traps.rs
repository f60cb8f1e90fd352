//! Every trap is a real failure, and can be avoided.

use std::{
    fs,
    process::{Command, Output, Stdio},
    sync::Mutex,
    thread,
};

use crate::common::{
    Server, example,
    examples::printed,
    tell,
    wait::{at_once, unless_halted},
};

/// The number on the pages.
const COUNT: usize = 41;
/// Many run at once, because a trap mostly waits.
const AT_ONCE: usize = 8;

fn traps(args: &[&str]) -> Output {
    example("traps").args(args).output().unwrap()
}

fn trap(name: &str) -> Command {
    let mut command = example("traps");
    command.arg(name);
    command
}

fn text(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// The names in the list.
fn names() -> Vec<String> {
    let list = text(&traps(&[]));
    let indented = list.lines().filter_map(|line| line.strip_prefix("  "));
    indented
        .filter_map(|line| line.split_whitespace().next())
        .map(str::to_owned)
        .collect()
}

#[test]
fn each_trap_fails_by_hand_and_works_with_the_crate() {
    let names = names();
    assert_eq!(names.len(), COUNT, "{names:?}");
    let left = Mutex::new(names.iter());
    thread::scope(|threads| {
        for _ in 0..AT_ONCE {
            threads.spawn(|| {
                while let Some(name) = { left.lock().unwrap().next() } {
                    unless_halted(|| check_halves(name, &printed(|| trap(name))));
                }
            });
        }
    });
}

fn check_halves(name: &str, shown: &str) {
    let (classic, ours) = shown.split_once("\nWith this crate\n").unwrap();
    let verdict = |half: &str| half.trim().lines().last().unwrap().to_owned();
    assert!(classic.contains("\nWithout this crate\n"), "{shown}");
    assert!(shown.starts_with(&format!("\n{name}: ")), "{shown}");
    assert!(verdict(classic).starts_with("WRONG  "), "{shown}");
    assert!(verdict(ours).starts_with("RIGHT  "), "{shown}");
    for half in [classic, ours] {
        let heads = half.lines().filter(|line| line.starts_with("time "));
        assert_eq!(heads.count(), 1, "{shown}");
        assert!(half.contains("in Redis"), "{shown}");
    }
    assert!(
        shown.lines().all(|line| line.chars().count() <= 100),
        "{shown}"
    );
    assert!(!shown.contains('\u{1b}'), "colour without a terminal");
}

#[test]
fn a_server_that_is_not_private_is_left_unchanged() {
    let server = Server::start().unwrap();
    let mut conn = server.connection().unwrap();
    let keys = |conn: &mut redis::Connection| -> Vec<String> {
        redis::cmd("KEYS").arg("*").query(conn).unwrap()
    };
    for name in ["flushall", "second-reader", "watch-left", "short-sweep"] {
        text(&traps(&[name, "--url", &server.url()]));
        assert_eq!(keys(&mut conn), [""; 0], "{name}");
    }
    tell(&mut conn, "SET lock:trap mine");
    let refused = traps(&["flushall", "--url", &server.url()]);
    assert!(!refused.status.success(), "{refused:?}");
    let value: String = redis::cmd("GET").arg("lock:trap").query(&mut conn).unwrap();
    assert_eq!(value, "mine");
}

/// As in `traps -- all | head`.
#[test]
fn a_closed_pipe_ends_it_silently() {
    for args in [&[][..], &["no-nx"]] {
        let mut run = example("traps");
        let run = run.args(args).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut run = run.spawn().unwrap();
        drop(run.stdout.take());
        let ended = run.wait_with_output().unwrap();
        let said = String::from_utf8(ended.stderr).unwrap();
        assert!(ended.status.success() && said.is_empty(), "{said}");
    }
}

#[test]
fn an_unknown_name_is_refused() {
    let refused = traps(&["no-such-trap"]);
    assert!(
        !refused.status.success() && refused.stdout.is_empty(),
        "{refused:?}"
    );
    assert!(String::from_utf8_lossy(&refused.stderr).contains("no-such-trap"));
}

/// The text in the example `timeline`'s drawing of a trap, scene by scene.
fn words_drawn_of(trap: &str) -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    let history = folder.path().join("history.jsonl");
    printed(|| {
        let mut command = self::trap(trap);
        command.arg("--history").arg(&history);
        command
    });
    text(&example("timeline").arg(&history).output().unwrap());
    let picture = fs::read_to_string(history.with_extension("svg")).unwrap();
    assert!(picture.contains("prefers-color-scheme: dark"));
    let texts = picture.split("<text").skip(1);
    let words = texts.map(|text| text.split('\n').nth(1).unwrap().to_owned());
    words.collect()
}

#[test]
fn its_history_is_drawn_with_its_conflicts_and_losses() {
    at_once(["overrun", "second-reader", "untold"], |trap| {
        let drawn = words_drawn_of(trap);
        let ours = drawn
            .iter()
            .position(|word| word.contains("with this crate"));
        assert_eq!(drawn.last().unwrap(), "two work at once");
        let (classic, ours) = drawn.split_at(ours.unwrap());
        let has = |half: &[String], word: &str| half.iter().any(|drawn| drawn == word);
        for word in ["conflict", "deleted"] {
            assert!(has(classic, word) && !has(ours, word), "{drawn:?}");
        }
        assert!(!has(classic, "notified"), "{drawn:?}");
        assert_eq!(has(ours, "notified"), trap == "untold", "{drawn:?}");
    });
}

#[test]
fn the_legend_of_a_picture_has_what_occurs() {
    let drawn = words_drawn_of("polling");
    let legend = ["waits", "holds the lock"].map(str::to_owned);
    assert!(
        drawn.ends_with(&legend) && drawn[drawn.len() - 3].ends_with(" ms"),
        "{drawn:?}"
    );
}

#[test]
fn input_that_is_not_a_history_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("history.jsonl");
    fs::write(&file, "no history\n").unwrap();
    let refused = example("timeline").arg(&file).output().unwrap();
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        !refused.status.success() && said.contains("line 1"),
        "{said}"
    );
}
