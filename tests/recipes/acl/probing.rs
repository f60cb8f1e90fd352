//! `Locks::probe` reports the same rules as docs/guarantees.md.

use std::collections::BTreeSet;

use leasehold::{Locks, Options, Probe, Severity};

use super::{Bench, waiting::NOT_A_MUTEX};
use crate::common::access_list::rules;

/// The rows of a mutex, without which no lock works, and those of everything else.
const ROWS: [&str; 16] = [
    "`mutex::try_acquire`,",
    "`mutex::renew`",
    "`mutex::release`",
    "`reentrant::try_acquire`",
    "`reentrant::renew`",
    "`reentrant::release`",
    "`reentrant::holds`",
    "a writer of `read_write`",
    "a reader of `read_write`",
    "`renew_read`",
    "`semaphore::try_acquire`,",
    "`semaphore::renew`",
    "`semaphore::release`",
    "`Lock::run_once`",
    "`Lease::commit`",
    NOT_A_MUTEX,
];
const OF_A_MUTEX: usize = 3;

fn probe(bench: &mut Bench, rules: &[String]) -> Probe {
    let locks = Locks::connect(&bench.url(rules)).unwrap();
    let locks = locks.with(Options::new().prefix("lock:app:"));
    locks.probe().unwrap()
}

fn commands_of(rows: &[&str]) -> BTreeSet<String> {
    let rules = rows.iter().flat_map(|row| rules(row));
    let commands = rules.filter(|rule| rule.starts_with('+'));
    commands.map(|rule| rule[1..].to_owned()).collect()
}

#[test]
fn each_missing_command_of_the_table_is_reported_and_no_other() {
    let mut bench = Bench::start();
    let (all, of_a_mutex) = (commands_of(&ROWS), commands_of(&ROWS[..OF_A_MUTEX]));
    let more = ["ping", "info", "wait", "client", "subscribe", "unsubscribe"];
    let allowed = |but: &str| {
        let commands = all.iter().map(String::as_str).chain(more);
        let commands = commands.filter(|name| *name != but);
        let rules = commands.map(|name| format!("+{name}"));
        rules.chain(["~*".to_owned()]).collect::<Vec<_>>()
    };
    let told = |probe: &Probe| probe.finding("commands").unwrap().clone();
    let found = told(&probe(&mut bench, &allowed("")));
    assert_eq!(found.severity, Severity::Good, "{found:?}");
    for name in &all {
        let found = probe(&mut bench, &allowed(name));
        let commands = told(&found);
        assert_eq!(commands.found, format!("missing: {name}"), "{found}");
        let is_fatal = of_a_mutex.contains(name);
        assert_eq!(commands.severity == Severity::Fails, is_fatal, "{found}");
        assert!(!is_fatal || !found.locks_work(), "{found}");
    }
}

#[test]
fn a_missing_key_of_a_lock_is_reported() {
    let mut bench = Bench::start();
    let keys = ["~lock:app:*", "~{lock:app:*}:lease"];
    let all = |patterns: &[&str]| {
        let patterns = patterns.iter().map(|it| (*it).to_owned());
        patterns.chain(["+@all".to_owned()]).collect::<Vec<_>>()
    };
    assert!(probe(&mut bench, &all(&keys)).locks_work());
    for key in keys {
        let found = probe(&mut bench, &all(&[key]));
        let scripts = found.finding("scripts").unwrap();
        assert_eq!(scripts.severity, Severity::Fails, "{found}");
        for key in ["`lock:app:probe:", "`{lock:app:probe:"] {
            assert!(scripts.found.contains(key), "{found}");
        }
    }
}

#[test]
fn a_user_without_the_right_to_tracking() {
    let mut bench = Bench::start();
    for (missing, words) in [
        ("-client +client|id", "client"),
        ("-client +client|tracking", "client"),
        ("-subscribe", "subscribe"),
        ("resetchannels", "channel"),
    ] {
        let rules = ["~*", "&*", "+@all"].into_iter().chain(missing.split(' '));
        let rules: Vec<_> = rules.map(str::to_owned).collect();
        let found = probe(&mut bench, &rules);
        let wake_ups = found.finding("wake-ups").unwrap();
        assert_eq!(wake_ups.severity, Severity::Limits, "{found}");
        assert!(wake_ups.found.contains(words), "{found}");
        assert!(found.locks_work());
    }
}
