//! The stand-in's memory: the keys of locks, their companions and marks, and the data of jobs.

mod commits;
mod data;
mod scripts;

use std::collections::{BTreeMap, HashMap, HashSet};

use redis::{RedisResult, Value};

use super::commit::Commit;
pub(super) use commits::{Watching, name_of};
pub(super) use data::{Answer, Hash, Words, lock_key, server_error, texts};

/// Nanoseconds since 1970. A lock expires to the nanosecond, not to the millisecond as on a server,
/// so it is free as soon as a test has moved the clock by its lease.
type Nanos = u64;

const MILLI: Nanos = 1_000_000;

/// Locks and data by their keys.
#[derive(Default)]
pub(super) struct Store {
    entries: HashMap<String, Entry>,
    /// The commits that were executed.
    pub(super) commits: Vec<Commit>,
    /// Keys that calls have used: a test may name a lock by its key.
    used: HashSet<String>,
    /// The keys that have changed, until the observers are notified.
    pub(super) changed: Vec<String>,
    /// The number of changes of each key.
    changes: HashMap<String, u64>,
    /// The test's function that replies to commands, if there is one.
    pub(super) answer: Option<Answer>,
}

/// A key of data, or that of a lock with its companion and mark.
#[derive(Clone, Default, PartialEq)]
struct Entry {
    stored: Option<Stored>,
    companion: Companion,
    run: Option<RunMark>,
}

/// The value of a key, and its end.
#[derive(Clone, PartialEq)]
struct Stored {
    content: Content,
    end: Option<Nanos>,
}

#[derive(Clone, PartialEq)]
enum Content {
    /// Data of a job, or a mutex: its holder's token.
    Text(Vec<u8>),
    /// Data of a job.
    Hash(Hash),
    /// A lock of another kind than a mutex. Its end is that of the last hold.
    Holds(Kind, Holds),
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Reentrant,
    ReadWrite,
    Semaphore,
}

/// The holds of a lock by their fields, which are those on a server: the levels `t:TOKEN` of a
/// reentrant lock, whose owner is in the companion; the readers `r:TOKEN`, writers `w:TOKEN` and
/// intents `i:TOKEN` of a read-write lock; the tokens of a semaphore's permits.
type Holds = BTreeMap<String, StoredHold>;

#[derive(Clone, Default, PartialEq)]
struct StoredHold {
    end: Nanos,
    /// The start of a permit, the number of permits that its holder passed, and the owner.
    described: String,
}

/// The companion key: the data of the current or last holder. The fencing token is 0 before the
/// first.
#[derive(Clone, Default, PartialEq)]
struct Companion {
    fence: u64,
    token: String,
    owner: String,
    /// Milliseconds since 1970.
    since: u64,
    reserved: u64,
}

/// The mark of a run that has succeeded.
#[derive(Clone, PartialEq)]
struct RunMark {
    /// Milliseconds since 1970.
    at: u64,
    by: String,
    token: String,
    end: Nanos,
}

impl Store {
    /// Runs one script or command with its arguments at this moment.
    pub(super) fn run(&mut self, script: &str, words: &[&str], now: Now) -> RedisResult<Value> {
        let mut key = words.first().copied().unwrap_or_default();
        if script == "LAST_RUN" {
            key = lock_key(key);
        }
        self.used.insert(key.to_owned());
        self.change(key, now, |entry| entry.run(script, words, now))
    }

    /// Changes an entry, and remembers that it has changed.
    fn change<T>(&mut self, key: &str, now: Now, change: impl FnOnce(&mut Entry) -> T) -> T {
        let entry = self.entries.entry(key.to_owned()).or_default();
        let with_expired = entry.clone();
        entry.remove_expired(now);
        let before = entry.stored.clone();
        let done = change(entry);
        if entry.stored != before {
            self.changed.push(key.to_owned());
        }
        if *entry != with_expired {
            *self.changes.entry(key.to_owned()).or_default() += 1;
        }
        done
    }

    /// Returns the key of the lock of this name, or the name itself if it is a key in use. Both if
    /// neither is in use.
    pub(super) fn keys_of(&self, name: &str) -> Vec<String> {
        let keys = [format!("lock:{name}"), name.to_owned()];
        let used = keys.iter().find(|key| self.used.contains(*key));
        used.map_or(keys.to_vec(), |key| vec![key.clone()])
    }

    fn is_lock(&self, key: &str) -> bool {
        let has_the_prefix = key.starts_with("lock:") && lock_key(key) == key;
        has_the_prefix || self.used.contains(key)
    }

    /// Removes a lock, as if it had expired. Returns false if it was free.
    pub(super) fn expire(&mut self, key: &str, now: Now) -> bool {
        let was_held = |entry: &mut Entry| entry.stored.take().is_some();
        self.change(key, now, was_held)
    }

    /// Gives the lock to someone else for `lease` milliseconds. It keeps its kind.
    pub(super) fn steal(&mut self, key: &str, token: &str, lease: u64, now: Now) {
        self.change(key, now, |entry| entry.steal(token, now.after(lease), now));
    }
}

impl Entry {
    fn remove_expired(&mut self, Now(now): Now) {
        // A reentrant lock counts a level for a while after its end.
        if let Some(Content::Holds(Kind::ReadWrite | Kind::Semaphore, holds)) = self.content_mut() {
            holds.retain(|_, hold| hold.end > now);
        }
        self.stored
            .take_if(|stored| stored.end.is_some_and(|end| end <= now));
    }

    fn content(&self) -> Option<&Content> {
        self.stored.as_ref().map(|stored| &stored.content)
    }

    fn content_mut(&mut self) -> Option<&mut Content> {
        self.stored.as_mut().map(|stored| &mut stored.content)
    }

    /// Issues a new fencing token and reserves the unused numbers below it, at most
    /// `most_reserved`: one for each microsecond since the last token.
    fn grant(&mut self, token: &str, who: &str, most_reserved: u64, now: Now) {
        let last = self.companion.fence;
        let fence = now.micros().max(last + 1);
        let passed = if last == 0 { 0 } else { fence - last - 1 };
        self.companion = Companion {
            fence,
            token: token.to_owned(),
            owner: who.to_owned(),
            since: now.millis(),
            reserved: passed.min(most_reserved),
        };
    }

    fn steal(&mut self, token: &str, end: Nanos, now: Now) {
        let thief = "someone else";
        let content = match self.content() {
            Some(Content::Holds(kind, _)) => {
                let field = match kind {
                    Kind::Reentrant => format!("t:{token}"),
                    Kind::ReadWrite => format!("w:{token}"),
                    Kind::Semaphore => token.to_owned(),
                };
                // All permits at once: the thief's semaphore has only one.
                let described = format!("{} 1 {thief}", now.millis());
                Content::Holds(*kind, Holds::from([(field, StoredHold { end, described })]))
            }
            _ => Content::Text(token.into()),
        };
        self.grant(token, thief, 0, now);
        self.stored = Some(Stored {
            content,
            end: Some(end),
        });
    }
}

/// The time of a call.
#[derive(Clone, Copy)]
pub(super) struct Now(pub(super) Nanos);

impl Now {
    fn micros(self) -> u64 {
        self.0 / 1_000
    }

    fn millis(self) -> u64 {
        self.0 / MILLI
    }

    fn after(self, millis: u64) -> Nanos {
        self.0 + millis * MILLI
    }
}
