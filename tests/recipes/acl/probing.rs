//! `Locks::probe` reports the same rules as docs/guarantees.md.

use leasehold::{Locks, Options, Probe, Severity};

use super::{Bench, waiting::NOT_A_MUTEX};
use crate::common::access_list::rules;

/// The probe's name of each kind, and its rows of the table.
const KINDS: [(&str, &[&str]); 7] = [
    (
        "lock",
        &[
            "`mutex::try_acquire`,",
            "`mutex::renew`",
            "`mutex::release`",
        ],
    ),
    (
        "reentrant lock",
        &[
            "`reentrant::try_acquire`",
            "`reentrant::renew`",
            "`reentrant::release`",
        ],
    ),
    (
        "read-write lock",
        &[
            "a writer of `read_write`",
            "a reader of `read_write`",
            "`renew_read`",
        ],
    ),
    (
        "semaphore",
        &[
            "`semaphore::try_acquire`,",
            "`semaphore::renew`",
            "`semaphore::release`",
        ],
    ),
    ("job once in a period", &["`Lock::run_once`"]),
    ("commit or transaction", &["`Lease::commit`"]),
    ("commit, unless under a mutex", &[NOT_A_MUTEX]),
];

fn probe(bench: &mut Bench, rules: &[String]) -> Probe {
    let locks = Locks::connect(&bench.url(rules)).unwrap();
    let locks = locks.with(Options::new().prefix("lock:app:"));
    locks.probe().unwrap()
}

#[test]
fn each_missing_command_of_the_table_is_reported_and_no_other() {
    let mut bench = Bench::start();
    for (kind, rows) in KINDS {
        let mut needed: Vec<_> = rows.iter().flat_map(|row| rules(row)).collect();
        needed.retain(|rule| rule.starts_with('+'));
        if kind == "commit or transaction" {
            // The other rules depend on the lock's kind.
            needed
                .retain(|rule| ["+watch", "+unwatch", "+multi", "+exec"].contains(&rule.as_str()));
        }
        needed.sort();
        needed.dedup();
        let all = [&["~*".to_owned()], &needed[..]].concat();
        let lacks = |probe: &Probe| {
            let commands = probe.finding("commands").unwrap();
            let lost = commands.consequence.trim_start_matches("Without them: ");
            let gaps = lost.trim_end_matches('.').split("; ");
            let ours = gaps.filter_map(|gap| gap.strip_prefix(&format!("no {kind} (")));
            ours.map(|gap| gap.trim_end_matches(')').to_owned()).next()
        };
        assert_eq!(lacks(&probe(&mut bench, &all)), None, "{kind}");
        for command in needed {
            let others: Vec<_> = all.iter().filter(|it| **it != command).cloned().collect();
            let found = probe(&mut bench, &others);
            let name = command.trim_start_matches('+');
            assert_eq!(lacks(&found).as_deref(), Some(name), "{kind}: {found}");
            let is_judged = kind == "lock";
            assert!(!is_judged || !found.locks_work(), "{found}");
        }
    }
}

#[test]
fn missing_keys_are_reported_by_pattern() {
    let mut bench = Bench::start();
    let keys = [
        "~lock:app:*",
        "~{lock:app:*}:lease",
        "~{lock:app:*}:lease:ran",
        "~{lock:app:*}:done{*",
        "~{lock:app:*}:proof{*",
    ];
    let all = |patterns: &[&str]| {
        let patterns = patterns.iter().map(|it| (*it).to_owned());
        patterns.chain(["+@all".to_owned()]).collect::<Vec<_>>()
    };
    let found = probe(&mut bench, &all(&keys));
    assert_eq!(
        found.finding("keys").unwrap().severity,
        Severity::Good,
        "{found}"
    );
    assert!(found.locks_work());
    for (at, what, severity) in [
        (0, "no lock:", Severity::Fails),
        (1, "no fencing token:", Severity::Fails),
        (2, "no mark of a run:", Severity::Limits),
        (3, "no mark of a commit:", Severity::Limits),
        (4, "no proof of a commit:", Severity::Limits),
    ] {
        // The second pattern also matches the third key.
        let patterns: Vec<_> = (0..5).filter(|n| *n != at).map(|n| keys[n]).collect();
        let found = probe(&mut bench, &all(&patterns));
        let keys_of = found.finding("keys").unwrap();
        assert_eq!(keys_of.severity, severity, "{found}");
        assert!(keys_of.consequence.contains(what), "{found}");
        assert_eq!(found.locks_work(), severity != Severity::Fails);
    }
    let locks = Locks::connect(&bench.url(&all(&keys))).unwrap();
    let found = locks.probe().unwrap();
    assert!(
        found.finding("keys").unwrap().found.contains("`lock:*`"),
        "{found}"
    );
    assert!(!found.locks_work());
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
