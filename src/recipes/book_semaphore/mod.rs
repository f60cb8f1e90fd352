//! The book's semaphores, at most `limit` holders at once: [`acquire_semaphore`],
//! [`release_semaphore`]; [`acquire_fair_semaphore`], [`release_fair_semaphore`],
//! [`refresh_fair_semaphore`], [`acquire_semaphore_with_lock`].
//!
//! From section 6.3 of *Redis in Action*. Keys and values are the book's, so programs that use the
//! book's functions and programs that use these count each other's permits. For any other semaphore
//! take [`Locks::semaphore`](crate::Locks::semaphore) or [`semaphore`](super::semaphore), whose
//! permits have ends of their own.
//!
//! # The keys
//!
//! They have no prefix:
//!
//! - `semname`: a ZSET of each permit's token, with the time of its acquire or last refresh as its
//!   score, in seconds since 1970.
//! - `semname:owner`, fair only: a ZSET of each permit's token, with a number as its score.
//! - `semname:counter`, fair only: the last number that a program of the book took. These functions
//!   only read it.
//!
//! All programs on one semaphore must use the same `limit` and `timeout`, and either the basic or
//! the fair functions.
//!
//! On a Redis Cluster the fair functions need a name with a `{tag}`, so that all keys are in one
//! slot. The server refuses others, which is [`Error::Invalid`], with nothing written. `Nodes::run`
//! finds the node by the name of a lock: with it the basic functions need a `{tag}` too.
//!
//! # Guarantees
//!
//! On one server that loses no data:
//!
//! - Among programs that use these functions, at most `limit` permits at a time are younger than
//!   `timeout`. Only the server's clock counts.
//! - A permit that comes free is free at once, and one whose holder has died is free `timeout`
//!   after its acquire or last refresh.
//! - A refused attempt leaves nothing behind, and a lost permit never comes back.
//! - In a fair semaphore a program of the book counts each permit of these, even one that was
//!   granted between two of its steps, until it is older than the timeout by that program's clock.
//!   Only two programs of the book can bring each other over the limit.
//! - The ZSETs end a day, or ten timeouts, after the last attempt or refresh.
//!
//! Not guaranteed:
//!
//! - That a holder notices the end of its permit: the timeout of *whoever asks next* ends it, and
//!   only [`refresh_fair_semaphore`] tells.
//! - Among several programs on the book's functions: what the book's own steps do wrong. One that
//!   has been refused keeps a permit from others until its last step. Into a basic semaphore, one
//!   with a slow clock, or a slow request, comes beside permits of any program.
//! - An order: nobody waits in turn. "Fair" means that no client's clock has an advantage.
//! - A semaphore that a program of the book keeps in use, without a pause and with no call of these
//!   functions, for a day after the last one: its ZSETs end once, and the permits with them.
//!
//! # Source
//!
//! The book's functions of these names, sections 6.3.1 to 6.3.4.
//!
//! # Differences from the book
//!
//! - One script in place of one to three transactions: two callers cannot both be granted the last
//!   permit, and one that dies halfway leaves no token that keeps a permit from others.
//! - The time is the server's, not the client's.
//! - Permits are counted, not ranked. An owner of ours has the number 0, before those of all
//!   programs of the book.
//! - The ZSETs have an end.
//! - [`acquire_semaphore_with_lock`] leaves no lock behind, so nothing of ours needs to be released
//!   after a crash. A lock of a program of the book is respected, and gets an end if it has none.
//!   A lock that stays busy is [`Error::Contended`], not "no permit".
//! - [`refresh_fair_semaphore`] writes nothing if the permit is lost.
//! - Scores that are no times in seconds, as those in milliseconds of the book's Java port, and
//!   keys of another type are [`Error::WrongKind`]: the book's sweep empties any ZSET whose scores
//!   are smaller than the time.
//! - A limit of 0, and a timeout of 0, are [`Error::Invalid`].

mod basic;
mod fair;

use std::time::Duration;

pub use basic::{acquire_semaphore, release_semaphore};
pub use fair::{
    acquire_fair_semaphore, acquire_semaphore_with_lock, refresh_fair_semaphore,
    release_fair_semaphore,
};

use crate::{
    error::{Error, Result, ensure},
    name::check_size,
    time::lease_millis,
    wire::Call,
};

/// The most permits of a semaphore.
const MOST_PERMITS: u32 = 10_000;

fn check_name(semname: &str) -> Result<()> {
    check_size("semname", semname)
}

/// A checked limit and timeout: the last arguments of each script that acquires.
struct PermitTerms {
    limit: u32,
    timeout_millis: u64,
}

impl PermitTerms {
    fn new(limit: u32, timeout: Duration) -> Result<Self> {
        let is_limit = (1..=MOST_PERMITS).contains(&limit);
        ensure(is_limit, "limit", "it has to be between 1 and 10,000")?;
        Ok(Self {
            limit,
            timeout_millis: lease_millis("timeout", timeout)?,
        })
    }

    fn of(&self, call: Call) -> Call {
        call.arg(self.limit).arg(self.timeout_millis)
    }
}

/// Makes the refusal of a cluster an error in the name. The server checks the slots before it
/// starts a script.
fn in_one_slot<T>(result: Result<T>) -> Result<T> {
    match result {
        Err(Error::Redis { source, .. }) if source.code() == Some("CROSSSLOT") => {
            let reason = "on a Redis Cluster its keys have to be in one slot: it needs a {tag}";
            Err(Error::invalid("semname", reason))
        }
        result => result,
    }
}
