//! The stand-in's memory: the keys of locks, their companions and marks, and the data of jobs.

mod commits;
mod data;
mod scripts;
mod semaphores;

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

use redis::{RedisResult, Value};

pub(super) use commits::{Commits, Watching, name_of};
pub(super) use data::{Answer, Data, Words, server_error, texts};

/// Nanoseconds since 1970. A lock expires to the nanosecond, not to the millisecond as on a server,
/// so it is free as soon as a test has moved the clock by its lease.
type Nanos = u64;

const MILLI: Nanos = 1_000_000;
/// The time within which writes can be undone.
const REMEMBERED: Nanos = 60_000 * MILLI;

/// Locks and data by their keys.
#[derive(Default)]
pub(super) struct Store {
    entries: HashMap<String, Entry>,
    pub(super) commits: Commits,
    /// Keys that calls have used: a test may name a lock by its key.
    used: HashSet<String>,
    /// The previous state of each key that the last writes changed.
    undo: VecDeque<Before>,
    /// The number of changes of each key.
    changes: HashMap<String, u64>,
    /// The test's function that replies to commands, if there is one.
    pub(super) answer: Option<Answer>,
}

/// A key's state before a write.
struct Before {
    at: Nanos,
    key: String,
    entry: Entry,
}

/// A key of data, or that of a lock with its companion and marks.
#[derive(Clone, Default, PartialEq)]
struct Entry {
    lock: Option<Stored>,
    companion: Companion,
    run: Option<RunMark>,
    data: Option<Data>,
}

/// A lock that is held.
#[derive(Clone, PartialEq)]
struct Stored {
    value: LockValue,
    end: Nanos,
}

#[derive(Clone, PartialEq)]
enum LockValue {
    /// The holder's token.
    Mutex(String),
    Reentrant(Entered),
    /// The ends by field: readers `r:`, writers `w:` and intents `i:`.
    ReadWrite(BTreeMap<String, Nanos>),
    Semaphore(Permits),
}

/// The permits of a semaphore by the tokens of their holders.
type Permits = BTreeMap<String, Permit>;

#[derive(Clone, PartialEq)]
struct Permit {
    end: Nanos,
    /// The start of the hold, the number of permits that its holder passed, and the owner.
    described: String,
}

/// The holder of a reentrant lock.
#[derive(Clone, Default, PartialEq)]
struct Entered {
    owner: String,
    /// The tokens that are not yet released, with their ends.
    acquisitions: BTreeMap<String, Nanos>,
    /// The token that was released last.
    released: Option<String>,
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
    key: String,
    /// Milliseconds since 1970.
    at: u64,
    by: String,
    token: String,
    end: Nanos,
}

/// The reply to a call, and the key of the lock that the call has changed.
#[derive(Debug)]
pub(super) struct Execution {
    pub(super) answer: RedisResult<Value>,
    pub(super) changed: Option<String>,
}

impl Store {
    /// Runs one script or command with its arguments at this moment.
    pub(super) fn run(&mut self, (script, words): (&str, Vec<&str>), now: Now) -> Execution {
        let key = words.first().copied().unwrap_or_default();
        if script == "LAST_RUN" {
            let runs = self.entries.values().filter_map(|entry| entry.run.as_ref());
            let told = (runs.filter(|run| run.key == key)).find_map(|run| run.told(now));
            return Execution {
                answer: Ok(told.unwrap_or(Value::Nil)),
                changed: None,
            };
        }
        self.used.insert(key.to_owned());
        let run = |entry: &mut Entry| entry.run(script, &words, now);
        let (answer, has_changed) = self.change(key, now, run);
        Execution {
            answer,
            changed: has_changed.then(|| key.to_owned()),
        }
    }

    /// Changes an entry and remembers its previous state. Returns true if the lock has changed.
    fn change<T>(
        &mut self,
        key: &str,
        now: Now,
        change: impl FnOnce(&mut Entry) -> T,
    ) -> (T, bool) {
        let entry = self.entries.entry(key.to_owned()).or_default();
        let with_expired = entry.clone();
        entry.remove_expired(now);
        let before = entry.clone();
        let done = change(entry);
        let has_changed = entry.lock != before.lock;
        if *entry != with_expired {
            *self.changes.entry(key.to_owned()).or_default() += 1;
        }
        if *entry != before {
            self.undo.push_back(Before {
                at: now.0,
                key: key.to_owned(),
                entry: before,
            });
        }
        while (self.undo.front()).is_some_and(|before| before.at + REMEMBERED < now.0) {
            self.undo.pop_front();
        }
        (done, has_changed)
    }

    /// Restores the state of this many nanoseconds ago.
    pub(super) fn undo_last(&mut self, time: Nanos, Now(now): Now) {
        let moment = now.saturating_sub(time.min(REMEMBERED));
        self.commits.forget_since(moment);
        while (self.undo.back()).is_some_and(|before| before.at >= moment) {
            if let Some(Before { key, entry, .. }) = self.undo.pop_back() {
                *self.changes.entry(key.clone()).or_default() += 1;
                self.entries.insert(key, entry);
            }
        }
    }

    /// Returns the key of the lock of this name, or the name itself if it is a key in use. Both if
    /// neither is in use.
    pub(super) fn keys_of(&self, name: &str) -> Vec<String> {
        let keys = [format!("lock:{name}"), name.to_owned()];
        let used = keys.iter().find(|key| self.used.contains(*key));
        used.map_or(keys.to_vec(), |key| vec![key.clone()])
    }

    /// Removes a lock, as if it had expired. Returns false if it was free.
    pub(super) fn expire(&mut self, key: &str, now: Now) -> bool {
        let was_held = |entry: &mut Entry| entry.lock.take().is_some();
        self.change(key, now, was_held).0
    }

    /// Gives the lock to someone else for `lease` milliseconds. It keeps its kind.
    pub(super) fn steal(&mut self, key: &str, token: &str, lease: u64, now: Now) {
        self.change(key, now, |entry| entry.steal(token, now.after(lease), now));
    }
}

impl Entry {
    fn remove_expired(&mut self, Now(now): Now) {
        if let Some(LockValue::ReadWrite(ends)) = self.value_mut() {
            ends.retain(|_, end| *end > now);
        }
        if let Some(LockValue::Semaphore(permits)) = self.value_mut() {
            permits.retain(|_, permit| permit.end > now);
        }
        self.lock.take_if(|lock| lock.end <= now);
        self.data
            .take_if(|data| data.end.is_some_and(|end| end <= now));
    }

    fn value(&self) -> Option<&LockValue> {
        self.lock.as_ref().map(|lock| &lock.value)
    }

    fn value_mut(&mut self) -> Option<&mut LockValue> {
        self.lock.as_mut().map(|lock| &mut lock.value)
    }

    /// Sets the lock, or extends it. Its end never moves back.
    fn hold(&mut self, end: Nanos, value: LockValue) {
        let lock = self.lock.get_or_insert(Stored { value, end });
        lock.end = lock.end.max(end);
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
        let value = match self.lock.take().map(|stored| stored.value) {
            None | Some(LockValue::Mutex(_)) => LockValue::Mutex(token.to_owned()),
            Some(LockValue::Reentrant(_)) => LockValue::Reentrant(Entered {
                owner: thief.to_owned(),
                acquisitions: BTreeMap::from([(token.to_owned(), end)]),
                released: None,
            }),
            Some(LockValue::ReadWrite(_)) => {
                LockValue::ReadWrite(BTreeMap::from([(format!("w:{token}"), end)]))
            }
            // All permits at once: the thief's semaphore has only one.
            Some(LockValue::Semaphore(_)) => {
                let described = format!("{} 1 {thief}", now.millis());
                let stolen = (token.to_owned(), Permit { end, described });
                LockValue::Semaphore(Permits::from([stolen]))
            }
        };
        self.grant(token, thief, 0, now);
        self.hold(end, value);
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
