//! Nodes of a cluster that grant a lock and then name each other: whatever is done with it is followed five times, and ends.

use std::time::Instant;

use leasehold::{Error, Lease, Locks, Options, Result};

use super::{LIMIT, SLOT, halves, nodes_of};
use crate::common::{Fake, LONG, MS, slack::slack};

/// Two nodes that grant what is asked for by the bare command.
struct Ring {
    nodes: (Fake, Fake),
    locks: Locks,
}

impl Ring {
    fn saying(code: &str) -> Self {
        let nodes = halves(Some("+OK\r\n"), |to| {
            format!("-{code} {SLOT} 127.0.0.1:{to}\r\n")
        });
        let locks = Locks::on_nodes(&nodes_of(&[nodes.0.port(), nodes.1.port()]));
        let locks = locks.with(Options::new().fencing(false));
        Self { nodes, locks }
    }

    /// How many commands came whose names begin like this.
    fn count(&self, begins: &str) -> usize {
        let (a, b) = &self.nodes;
        let asked = a.asked().into_iter().chain(b.asked());
        asked.filter(|name| name.starts_with(begins)).count()
    }

    /// The call fails by this word in time, and has sent so many commands of this name.
    fn is_left<T: std::fmt::Debug>(
        &self,
        code: &str,
        sent: (&str, usize),
        call: impl FnOnce() -> Result<T>,
    ) {
        let (before, asked) = (self.count(sent.0), Instant::now());
        let error = call().unwrap_err();
        let took = asked.elapsed();
        assert!(took < 2 * LIMIT + slack(), "{took:?}");
        assert!(
            matches!(&error, Error::Redis { source, .. } if source.code() == Some(code)),
            "{error:?}"
        );
        assert_eq!(self.count(sent.0) - before, sent.1, "{code}");
    }
}

#[test]
fn what_an_operator_asks_of_a_lock_is_followed_five_times() {
    for code in ["MOVED", "ASK"] {
        let ring = Ring::saying(code);
        let lock = ring.locks.lock("a");
        ring.is_left(code, ("EVAL", 6), || lock.inspect());
    }
    // What may not be sent twice goes to one that is being given the slot, and no further.
    for (code, sent) in [("MOVED", 6), ("ASK", 2)] {
        let ring = Ring::saying(code);
        let lock = ring.locks.lock("a");
        ring.is_left(code, ("EVAL", sent), || lock.force_release());
    }
}

#[test]
fn a_commit_is_followed_five_times() {
    let ring = Ring::saying("MOVED");
    let lease = ring.locks.lock("a").acquire(LONG).unwrap();
    ring.is_left("MOVED", ("WATCH", 6), || {
        lease.commit(|pipe| _ = pipe.set("b", 1))
    });
}

/// Its thread goes on to the next one then, and has to say in time that the lease is over.
#[test]
fn the_renewals_of_a_lease_are_followed_five_times_each() {
    for code in ["MOVED", "ASK"] {
        let ring = Ring::saying(code);
        let lease = 900 * MS;
        let asked = Instant::now();
        let held: Lease = (ring.locks.lock("a"))
            .with(Options::new().fencing(false).lease(lease))
            .acquire(LONG)
            .unwrap();
        assert!(held.lost().wait_for(lease + slack()), "{code}");
        let (took, sent) = (asked.elapsed(), ring.count("EVAL"));
        println!("{code}: over after {took:?}, {sent} scripts");
        assert!(!held.is_held() && took < lease + slack(), "{took:?}");
        assert!((6..400).contains(&sent), "{code}: {sent}");
        drop(held);
    }
}
