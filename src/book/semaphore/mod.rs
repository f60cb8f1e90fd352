//! The book's semaphores, at most `limit` holders at once: [`acquire_semaphore`],
//! [`release_semaphore`]; [`acquire_fair_semaphore`], [`release_fair_semaphore`],
//! [`refresh_fair_semaphore`], [`acquire_semaphore_with_lock`].
//!
//! From section 6.3 of *Redis in Action*. Keys and values are the book's, so programs that use the
//! book's functions and programs that use these count each other's permits. For any other semaphore
//! use [`Locks::semaphore`](crate::Locks::semaphore) or
//! [`recipes::semaphore`](crate::recipes::semaphore), whose permits have their own ends.
//!
//! # The keys
//!
//! They have no prefix:
//!
//! - `semname`: a ZSET of each permit's token, with the time of its acquire or last refresh as its
//!   score, in seconds since 1970.
//! - `semname:owner`, fair only: a ZSET of each permit's token, with a number as its score.
//! - `semname:counter`, fair only: the last number that one of the book's programs took. These
//!   functions only read it.
//!
//! All programs on one semaphore must use the same `limit` and `timeout`, and either the basic or
//! the fair functions.
//!
//! On a Redis Cluster the fair functions need a name with a `{tag}`, so that all keys are in one
//! slot. The server refuses other names, which gives [`Error::Invalid`]; nothing is written.
//! `Nodes::run` finds the node by the name of a lock: with it the basic functions need a `{tag}`
//! too.
//!
//! # Guarantees
//!
//! On one server that loses no data:
//!
//! - Among programs that use these functions, at most `limit` permits at a time are younger than
//!   `timeout`. Only the server's clock counts.
//! - A released permit is free at once, and the permit of a dead holder is free `timeout` after its
//!   acquire or last refresh.
//! - A refused attempt leaves nothing behind, and a lost permit never comes back.
//! - In a fair semaphore the book's programs count each permit of these functions, even one granted
//!   between two of their steps, until it is older than the timeout by that program's clock. The
//!   limit can be exceeded only by two of the book's programs.
//! - The ZSETs expire a day, or ten timeouts if that is longer, after the last attempt or refresh.
//!
//! Not guaranteed:
//!
//! - That a holder notices the end of its permit: the timeout of *the next caller* ends it, and
//!   only [`refresh_fair_semaphore`] shows that.
//! - The limit among several programs that use the book's own steps. A program that is refused
//!   blocks a permit until its last step. In a basic semaphore, a program with a slow clock, or a
//!   slow request, gets a permit beyond the limit.
//! - An order among callers. "Fair" means that no client's clock gives an advantage.
//! - The permits of a semaphore that only the book's programs have used, without a pause, for a day
//!   after the last call of these functions: its ZSETs expire then, and the permits with them.
//!
//! # Source
//!
//! The book's functions of these names, sections 6.3.1 to 6.3.4.
//!
//! # Differences from the book
//!
//! - One script replaces one to three transactions: two callers cannot both be granted the last
//!   permit, and one that dies halfway leaves no token that blocks a permit.
//! - The time is the server's, not the client's.
//! - Permits are counted, not ranked. Our owners have the number 0, which precedes those of all the
//!   book's programs.
//! - The ZSETs expire.
//! - [`acquire_semaphore_with_lock`] leaves no lock behind, so a crash leaves nothing to release.
//!   It respects the lock of one of the book's programs, and gives it an end if it has none. A lock
//!   that stays busy gives [`Error::Contended`], not "no permit".
//! - [`refresh_fair_semaphore`] writes nothing if the permit is lost.
//! - Scores that are not times in seconds, such as the milliseconds of the book's Java port, and
//!   keys of another type give [`Error::WrongKind`]: the book's sweep empties any ZSET whose scores
//!   are smaller than the time.
//! - A limit or a timeout of 0 gives [`Error::Invalid`].

mod acquire_fair_semaphore;
mod acquire_semaphore;

use std::time::Duration;

use redis::Connection;

pub use self::acquire_fair_semaphore::{
    acquire_fair_semaphore, acquire_semaphore_with_lock, refresh_fair_semaphore,
    release_fair_semaphore,
};
pub use self::acquire_semaphore::{acquire_semaphore, release_semaphore};

use crate::{
    error::{Error, Operation, Result, ensure},
    time::lease_millis,
    token::Token,
    wire::Call,
};

/// The maximum number of permits of a semaphore.
const MOST_PERMITS: u32 = 10_000;

/// Adds the last arguments of each script that acquires.
fn wanting(call: Call, token: &Token, limit: u32, timeout: Duration) -> Result<Call> {
    let is_limit = (1..=MOST_PERMITS).contains(&limit);
    ensure(is_limit, "limit", "it must be between 1 and 10,000")?;
    let timeout = lease_millis("timeout", timeout)?;
    Ok(call.arg(token.as_str()).arg(limit).arg(timeout))
}

fn acquire(
    conn: &mut Connection,
    operation: Operation<'_>,
    call: Call,
    limit: u32,
    timeout: Duration,
) -> Result<Option<Token>> {
    let token = Token::random();
    let granted = wanting(call, &token, limit, timeout)?.asks(conn);
    let granted = granted.map_err(|error| operation.unanswered(Some(&token), error));
    Ok(in_one_slot(granted)?.then_some(token))
}

/// Converts the refusal of keys in several slots to [`Error::Invalid`] for the name. Nothing was
/// done: the server checks the slots before it starts a script.
fn in_one_slot<T>(result: Result<T>) -> Result<T> {
    match result {
        Err(Error::Redis { source, .. }) if source.code() == Some("CROSSSLOT") => {
            let reason = "on a Redis Cluster it needs a {tag}, so that its keys are in one slot";
            Err(Error::invalid("semname", reason))
        }
        result => result,
    }
}
