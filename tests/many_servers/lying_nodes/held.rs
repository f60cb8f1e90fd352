//! Cluster nodes that grant a lock and then name each other: a call follows `MOVED` five times and
//! retries `ASK` for an I/O time-out, then ends.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Instant,
};

use leasehold::{Error, Lease, Locks, Options, Pool, PoolBuilder, Result};

use super::{
    LIMIT, SLOT, Said, all_at, half_at, halves, master_and_replica_at, patient_builder, url_of,
};
use crate::common::{Fake, LONG, MS, SLACK, fake::HANG_UP, hold::comes_true, server::free_port};

/// Two nodes that grant the bare acquire command.
struct Ring {
    nodes: (Fake, Fake),
    locks: Locks,
}

impl Ring {
    fn saying(code: &str) -> Self {
        Self::with(code, patient_builder().connect_timeout(LONG))
    }

    fn with(code: &str, builder: PoolBuilder) -> Self {
        let nodes = halves(Some("+OK\r\n"), |to| {
            format!("-{code} {SLOT} 127.0.0.1:{to}\r\n")
        });
        let url = url_of(&[nodes.0.port(), nodes.1.port()]);
        let locks = Locks::on_nodes(&builder.connect_nodes(&url).unwrap());
        let locks = locks.with(Options::new().fencing(false));
        Self { nodes, locks }
    }

    /// Number of commands whose names have this prefix.
    fn count(&self, begins: &str) -> usize {
        let (a, b) = &self.nodes;
        let asked = a.asked().into_iter().chain(b.asked());
        asked.filter(|name| name.starts_with(begins)).count()
    }

    /// The call fails in time with this word, after this many commands of this name.
    fn is_left<T: std::fmt::Debug>(
        &self,
        code: &str,
        sent: (&str, usize),
        call: impl FnOnce() -> Result<T>,
    ) {
        let (before, asked) = (self.count(sent.0), Instant::now());
        let error = call().unwrap_err();
        let took = asked.elapsed();
        assert!(took < 2 * LIMIT + SLACK, "{took:?}");
        assert!(
            matches!(&error, Error::Redis { source, .. } if source.code() == Some(code)),
            "{error:?}"
        );
        assert_eq!(self.count(sent.0) - before, sent.1, "{code}");
    }
}

#[test]
fn operator_calls_follow_five_redirects() {
    let ring = Ring::saying("MOVED");
    let lock = ring.locks.lock("a");
    ring.is_left("MOVED", ("EVAL", 6), || lock.inspect());
    // A command that may not be sent twice.
    let ring = Ring::saying("MOVED");
    let lock = ring.locks.lock("a");
    let asked = Instant::now();
    ring.is_left("MOVED", ("EVAL", 6), || lock.force_release());
    // Two nodes that name each other had time to agree.
    assert!(asked.elapsed() >= 150 * MS);
}

#[test]
fn a_call_is_retried_for_one_io_timeout_while_a_slot_moves() {
    let limit = 400 * MS;
    let ring = Ring::with("ASK", patient_builder().io_timeout(limit));
    let lock = ring.locks.lock("a");
    let lease = lock.acquire(LONG).unwrap();
    let calls: [&dyn Fn() -> Result<()>; 4] = [
        &|| lock.inspect().map(drop),
        &|| lock.force_release().map(drop),
        &|| lease.renew(LONG),
        &|| lease.commit(|pipe| _ = pipe.set("b", 1)),
    ];
    for (n, call) in calls.into_iter().enumerate() {
        let (asked, before) = (Instant::now(), ring.count(""));
        let error = call().unwrap_err();
        let (took, sent) = (asked.elapsed(), ring.count("") - before);
        assert!(
            matches!(&error, Error::Redis { source, .. } if source.code() == Some("ASK")),
            "{n} {error:?}"
        );
        assert!((limit..limit + SLACK).contains(&took), "{n} {took:?}");
        assert!(sent > 5, "{n} {sent}");
    }
}

#[test]
fn a_commit_is_retried_for_250_ms_while_two_nodes_redirect_to_each_other() {
    let limit = 250 * MS;
    let ring = Ring::saying("MOVED");
    let lease = ring.locks.lock("a").acquire(LONG).unwrap();
    let asked = Instant::now();
    let error = lease.commit(|pipe| _ = pipe.set("b", 1)).unwrap_err();
    let took = asked.elapsed();
    assert!(
        matches!(&error, Error::Redis { source, .. } if source.code() == Some("MOVED")),
        "{error:?}"
    );
    assert!((limit..limit + SLACK).contains(&took), "{took:?}");
}

/// The release is redirected late to another node, whose connections are all lent.
#[test]
fn a_redirected_drop_stays_within_its_time_limit() {
    let (one, other) = (Said::new(":1\r\n"), Said::new(""));
    let (there, says) = (other.by_a_node(), one.clone());
    let late = Arc::new(AtomicBool::new(false));
    let is_late = Arc::clone(&late);
    let here = Fake::saying(move |command, before| {
        if command.starts_with("EVAL") && is_late.load(Ordering::SeqCst) {
            thread::sleep(900 * MS);
        }
        says.answer(command, before)
    });
    let halves = half_at(here.port(), there.port());
    other.now(|words| words.slots = halves.clone());
    one.now(|words| (words.slots, words.set) = (halves, Some("+OK\r\n")));
    let builder = Pool::builder().max_size(1).io_timeout(LONG);
    let url = format!("redis+cluster://127.0.0.1:{}", here.port());
    let nodes = builder.connect_nodes(&url).unwrap();
    let drop_timeout = 1_000 * MS;
    let options = Options::new().fencing(false).drop_timeout(drop_timeout);
    let locks = Locks::on_nodes(&nodes).with(options);
    let lease = locks.lock("a").acquire(LONG).unwrap();
    // The lent connection is to the other node, and the watchdog has read the lease.
    let _lent = nodes.get_for("b").unwrap();
    assert!(comes_true(|| here
        .asked()
        .iter()
        .any(|it| it.starts_with("EVAL"))));
    thread::sleep(100 * MS);
    one.now(|words| {
        words.slots = all_at(there.port());
        words.rest = format!("-MOVED {SLOT} 127.0.0.1:{}\r\n", there.port());
    });
    late.store(true, Ordering::SeqCst);
    let asked = Instant::now();
    drop(lease);
    let took = asked.elapsed();
    assert!(took > 850 * MS && took < drop_timeout + SLACK, "{took:?}");
}

/// The watchdog then continues with the next redirect, and has to report in time that the lease has
/// ended.
#[test]
fn renewals_follow_redirects_until_the_lease_ends() {
    for code in ["MOVED", "ASK"] {
        let ring = Ring::saying(code);
        let lease = 2_000 * MS;
        let held: Lease = (ring.locks.lock("a"))
            .with(Options::new().fencing(false).lease(lease))
            .acquire(LONG)
            .unwrap();
        let asked = Instant::now();
        assert!(held.lost().wait_for(LONG), "{code}");
        let (took, sent) = (asked.elapsed(), ring.count("EVAL"));
        println!("{code}: over after {took:?}, {sent} scripts");
        assert!(!held.is_held() && took < lease + SLACK, "{took:?}");
        assert!((6..400).contains(&sent), "{code}: {sent}");
        drop(held);
    }
}

/// For example a shard that leaves the cluster as soon as its slots have moved.
#[test]
fn a_lease_is_renewed_at_its_new_shard_after_the_old_one_is_gone() {
    let (one, other) = (Said::new(":1\r\n"), Said::new(":1\r\n"));
    let (here, there) = (one.by_a_node(), other.by_a_node());
    one.now(|words| (words.slots, words.set) = (all_at(here.port()), Some("+OK\r\n")));
    other.now(|words| words.slots = all_at(there.port()));
    let nodes = patient_builder().connect_nodes(&url_of(&[here.port(), there.port()]));
    let locks = Locks::on_nodes(&nodes.unwrap());
    let lease = 2_000 * MS;
    let options = Options::new().fencing(false).lease(lease);
    let held = locks.lock("a").with(options).acquire(LONG).unwrap();
    drop(here);
    let lost = held.lost().wait_for(2 * lease);
    assert!(!lost && held.is_held(), "{:?}", there.asked());
}

/// It was sent on a connection that closed, and again on another.
#[test]
fn a_renewal_that_may_have_run_is_unknown_after_a_redirect_to_nowhere() {
    let gone = free_port().unwrap();
    let said = Said::new(":1\r\n");
    let (says, hangs_up) = (said.clone(), Arc::new(AtomicBool::new(false)));
    let hangs_up_once = Arc::clone(&hangs_up);
    let moved = format!("-MOVED {SLOT} 127.0.0.1:{}\r\n", gone.number());
    let node = Fake::saying(move |command, before| {
        if command.starts_with("EVAL") && hangs_up_once.swap(false, Ordering::SeqCst) {
            says.now(|words| words.rest.clone_from(&moved));
            return HANG_UP.to_vec();
        }
        says.answer(command, before)
    });
    said.now(|words| {
        words.slots = master_and_replica_at(node.port(), gone.number());
        words.set = Some("+OK\r\n");
    });
    let nodes = patient_builder()
        .connect_nodes(&url_of(&[node.port()]))
        .unwrap();
    let locks = Locks::on_nodes(&nodes).with(Options::new().fencing(false));
    let lease = locks.lock("a").acquire(LONG).unwrap();
    // By now the watchdog has read it, and no renewal is due.
    let looked = |name: &String| name.starts_with("EVAL");
    assert!(comes_true(|| node.asked().iter().any(looked)));
    thread::sleep(100 * MS);
    hangs_up.store(true, Ordering::SeqCst);
    let renewed = lease.renew(LONG);
    assert!(matches!(renewed, Err(Error::Unknown { .. })), "{renewed:?}");
}

/// It was sent on a connection that closed, and again on another, which answers that the slot has
/// moved. The node there does not have the lock.
#[test]
fn a_release_that_may_have_run_before_its_slot_moved_is_unknown() {
    for names in [&["a"][..], &["a", "{lock:a}beside"]] {
        let (said, there_said) = (Said::new(":1\r\n"), Said::new(":0\r\n"));
        let there_says = there_said.clone();
        let there = Fake::saying(move |command, before| there_says.answer(command, before));
        let moved = format!("-MOVED {SLOT} 127.0.0.1:{}\r\n", there.port());
        let (says, hangs_up) = (said.clone(), Arc::new(AtomicBool::new(false)));
        let hangs_up_once = Arc::clone(&hangs_up);
        let here = Fake::saying(move |command, before| {
            if command.starts_with("EVAL") && hangs_up_once.swap(false, Ordering::SeqCst) {
                says.now(|words| words.rest.clone_from(&moved));
                return HANG_UP.to_vec();
            }
            says.answer(command, before)
        });
        let nodes = (here.port(), there.port());
        said.now(|words| {
            words.slots = master_and_replica_at(nodes.0, nodes.1);
            words.set = Some("+OK\r\n");
        });
        there_said.now(|words| words.slots = master_and_replica_at(nodes.1, nodes.0));
        let locks = patient_builder().connect_nodes(&url_of(&[here.port()]));
        let locks = Locks::on_nodes(&locks.unwrap()).with(Options::new().fencing(false));
        let leases = locks.all_of(names).acquire(LONG).unwrap();
        // By now the watchdog has read them, and no renewal is due.
        let looked = |name: &String| name.starts_with("EVAL");
        assert!(comes_true(|| here.asked().iter().any(looked)));
        thread::sleep(100 * MS);
        hangs_up.store(true, Ordering::SeqCst);
        let released = leases.release();
        let is_unknown = matches!(released, Err(Error::Unknown { .. }));
        assert!(is_unknown, "{names:?}: {released:?}");
    }
}
