//! What stands on the server: locks by their keys. What each script makes of them is the same as
//! its Lua does.

mod commits;
mod inspection;
mod once;
mod replies;
mod scripts;

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

use redis::{RedisResult, Value};

pub(super) use commits::Commits;
use replies::{digits, int, number, yes};

/// In nanoseconds since 1970. A lock ends here to the nanosecond, not to the millisecond as on a
/// server, so that it is free as soon as a test has let its lease pass.
type Nanos = u64;

const MILLI: Nanos = 1_000_000;
/// Writes of this time can be forgotten.
const REMEMBERED: Nanos = 60_000 * MILLI;
const USUAL_PREFIX: &str = "lock:";

/// Locks by their keys.
#[derive(Debug, Default)]
pub(super) struct Store {
    locks: HashMap<String, Stored>,
    companions: HashMap<String, Companion>,
    /// Of work that is done once in a period, by the keys of the marks.
    runs: HashMap<String, Run>,
    pub(super) commits: Commits,
    /// Keys of locks that were stolen before anybody had had them: the name may be a whole key of
    /// another prefix.
    untried: HashSet<String>,
    /// How it was before each of the last writes.
    undo: VecDeque<Before>,
}

/// What stood at a key, and beside it, before it was written to.
#[derive(Debug)]
struct Before {
    at: Nanos,
    key: String,
    lock: Option<Stored>,
    companion: Option<Companion>,
    /// The mark of a run, by its key.
    run: Option<(String, Option<Run>)>,
}

/// A lock that somebody has.
#[derive(Clone, Debug)]
struct Stored {
    what: Held,
    end: Nanos,
}

#[derive(Clone, Debug)]
enum Held {
    /// By this token.
    Mutex(String),
    Reentrant(Entered),
    /// The ends of readers `r:`, writers `w:` and intents `i:`.
    ReadWrite(BTreeMap<String, Nanos>),
}

/// Who is in a reentrant lock.
#[derive(Clone, Debug, Default)]
struct Entered {
    owner: String,
    /// Not yet given back, with their ends.
    acquisitions: BTreeMap<String, Nanos>,
    /// The last that was.
    released: Option<String>,
}

/// What stands beside a lock: of its holder, or of the last.
#[derive(Clone, Debug, Default)]
struct Companion {
    fence: u64,
    token: String,
    owner: String,
    /// In milliseconds since 1970.
    since: u64,
    reserved: u64,
}

/// The mark of a run that has succeeded.
#[derive(Clone, Debug)]
struct Run {
    /// In milliseconds since 1970.
    at: u64,
    by: String,
    token: String,
    end: Nanos,
}

/// What a call has come to, and the key of the lock that it has changed.
#[derive(Debug)]
pub(super) struct Ran {
    pub(super) answer: RedisResult<Value>,
    pub(super) changed: Option<String>,
}

impl Store {
    /// Runs one script, or a command with its words, at this moment.
    pub(super) fn run(&mut self, (script, words): (&str, Vec<&str>), now: Now) -> Ran {
        let key = words.first().copied().unwrap_or_default().to_owned();
        self.find_what_was_untried(&key);
        self.end_what_has_passed(&key, now);
        let before = self.state_of(&key);
        let mark = (script == "FINISH_RUN").then(|| words.get(1).copied().unwrap_or_default());
        self.remember(&key, mark, now);
        let answer = self.answer(script, &words, now);
        let changed = (self.state_of(&key) != before).then_some(key);
        if changed.is_none() {
            self.undo.pop_back();
        }
        Ran { answer, changed }
    }

    fn remember(&mut self, key: &str, mark: Option<&str>, Now(at): Now) {
        while (self.undo.front()).is_some_and(|before| before.at + REMEMBERED < at) {
            self.undo.pop_front();
        }
        self.undo.push_back(Before {
            at,
            key: key.to_owned(),
            lock: self.locks.get(key).cloned(),
            companion: self.companions.get(key).cloned(),
            run: mark.map(|mark| (mark.to_owned(), self.runs.get(mark).cloned())),
        });
    }

    /// Everything is as it was so many nanoseconds ago.
    pub(super) fn forget_the_last(&mut self, time: Nanos, Now(now): Now) {
        self.commits
            .forget_what_is_since(now.saturating_sub(time.min(REMEMBERED)));
        while (self.undo.back()).is_some_and(|before| before.at + time >= now) {
            let Some(before) = self.undo.pop_back() else {
                return;
            };
            put_back(&mut self.locks, before.key.clone(), before.lock);
            put_back(&mut self.companions, before.key, before.companion);
            if let Some((mark, run)) = before.run {
                put_back(&mut self.runs, mark, run);
            }
        }
    }

    fn end_what_has_passed(&mut self, key: &str, Now(now): Now) {
        if let Some(stored) = self.locks.get_mut(key) {
            if let Held::ReadWrite(ends) = &mut stored.what {
                ends.retain(|_, end| *end > now);
            }
            if stored.end <= now {
                self.locks.remove(key);
            }
        }
    }

    fn state_of(&self, key: &str) -> Option<String> {
        self.locks.get(key).map(|stored| format!("{stored:?}"))
    }

    fn answer(&mut self, script: &str, words: &[&str], now: Now) -> RedisResult<Value> {
        match (script, words) {
            ("INSPECT", [key, _]) => Ok(self.inspected(key, now)),
            ("FORCE_RELEASE", [key, _]) => {
                let found = self.inspected(key, now);
                let was_held = self.locks.remove(*key).is_some();
                Ok(Value::Array(vec![yes(was_held), found]))
            }
            // What stands there may be of any type: the bare command does not look.
            ("SET", [key, _, "NX", ..]) if self.locks.contains_key(*key) => Ok(Value::Nil),
            ("SET", [key, token, "NX", "PX", lease]) => {
                let what = || Held::Mutex((*token).to_owned());
                self.hold(key, now.after(number(lease)?), what);
                Ok(Value::Okay)
            }
            (script, words) if script.ends_with("_RUN") => self.run_once(script, words, now),
            (script, words) if script.ends_with("_REENTRANT") => self.reentrant(script, words, now),
            (script, words) if script.ends_with("_MUTEX") => self.mutex(script, words, now),
            (script, words) => self.read_write(script, words, now),
        }
    }

    /// The lock is held until then, or longer if it was.
    fn hold(&mut self, key: &str, end: Nanos, what: impl FnOnce() -> Held) {
        if self.locks.contains_key(key) {
            return self.extend(key, end);
        }
        let what = what();
        self.locks.insert(key.to_owned(), Stored { what, end });
    }

    fn extend(&mut self, key: &str, end: Nanos) {
        if let Some(stored) = self.locks.get_mut(key) {
            stored.end = stored.end.max(end);
        }
    }

    /// A new fencing token, and at most so many more after it: as many as the clock has passed
    /// since the last one.
    fn grant(&mut self, key: &str, token: &str, who: &str, most_reserved: u64, now: Now) {
        let companion = self.companions.entry(key.to_owned()).or_default();
        let fence = now.micros().max(companion.fence + 1);
        let reserved = match companion.fence {
            0 => 0,
            last => most_reserved.min(fence - last - 1),
        };
        *companion = Companion {
            fence,
            token: token.to_owned(),
            owner: who.to_owned(),
            since: now.millis(),
            reserved,
        };
    }

    fn companion_is_of(&self, key: &str, token: &str) -> bool {
        let companion = self.companions.get(key);
        companion.is_some_and(|companion| companion.token == token)
    }

    fn fence(&self, key: &str) -> Value {
        let companion = self.companions.get(key);
        digits(companion.map_or(0, |companion| companion.fence))
    }

    /// A mutex's fencing token; for those that hand it over, the first of theirs and how many
    /// follow.
    fn numbers(&self, key: &str, are_handed_over: bool) -> Value {
        let Some(companion) = self.companions.get(key).filter(|_| are_handed_over) else {
            return self.fence(key);
        };
        let first = digits(companion.fence.saturating_sub(companion.reserved));
        Value::Array(vec![first, Value::Int(int(companion.reserved))])
    }

    fn refusal(&self, key: &str, tell: &str, bare: Value, now: Now) -> Value {
        let end = self.locks.get(key).map_or(0, |stored| stored.end);
        refusal(end, tell, bare, now)
    }

    /// The key of the lock of this name, or that it is.
    pub(super) fn key_of(&self, name: &str) -> String {
        let usual = usual_key(name);
        if self.is_known(name) && !self.is_known(&usual) {
            return name.to_owned();
        }
        usual
    }

    /// Whether it is that of a lock that somebody has had.
    fn is_known(&self, key: &str) -> bool {
        self.locks.contains_key(key) || self.companions.contains_key(key)
    }

    /// A lock of another prefix may have been stolen as if its key were a name.
    fn find_what_was_untried(&mut self, key: &str) {
        let usual = usual_key(key);
        let is_whole = !key.starts_with(USUAL_PREFIX) && self.untried.remove(&usual);
        self.untried.remove(key);
        if is_whole && !self.is_known(key) {
            let (lock, companion) = (self.locks.remove(&usual), self.companions.remove(&usual));
            self.locks.extend(lock.map(|lock| (key.to_owned(), lock)));
            let companion = companion.map(|companion| (key.to_owned(), companion));
            self.companions.extend(companion);
        }
    }

    /// Ends whatever stands there, as if its time had come. False: nothing.
    pub(super) fn expire(&mut self, key: &str, now: Now) -> bool {
        self.end_what_has_passed(key, now);
        self.remember(key, None, now);
        self.locks.remove(key).is_some()
    }

    /// Somebody else has the lock, of the kind that it was of, for so many milliseconds.
    pub(super) fn steal(&mut self, key: &str, token: &str, lease: u64, now: Now) {
        let (end, thief) = (now.after(lease), "somebody else");
        self.end_what_has_passed(key, now);
        if !self.is_known(key) {
            self.untried.insert(key.to_owned());
        }
        self.remember(key, None, now);
        let what = match self.locks.remove(key).map(|stored| stored.what) {
            None | Some(Held::Mutex(_)) => Held::Mutex(token.to_owned()),
            Some(Held::Reentrant(_)) => Held::Reentrant(Entered {
                owner: thief.to_owned(),
                acquisitions: BTreeMap::from([(token.to_owned(), end)]),
                released: None,
            }),
            Some(Held::ReadWrite(_)) => {
                Held::ReadWrite(BTreeMap::from([(format!("w:{token}"), end)]))
            }
        };
        self.grant(key, token, thief, 0, now);
        self.hold(key, end, || what);
    }
}

impl Entered {
    fn count(&self) -> i64 {
        self.acquisitions.len().try_into().unwrap_or(i64::MAX)
    }

    /// Takes the levels off whose end has passed, a little later as on a server.
    fn end_what_has_passed(&mut self, Now(now): Now) {
        self.acquisitions.retain(|_, end| *end + 100 * MILLI >= now);
    }

    fn last_end(&self) -> Nanos {
        self.acquisitions.values().copied().max().unwrap_or(0)
    }
}

/// When a call is made.
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

    fn millis_until(self, end: Nanos) -> i64 {
        int(end.saturating_sub(self.0) / MILLI)
    }
}

fn put_back<T>(all: &mut HashMap<String, T>, key: String, before: Option<T>) {
    match before {
        Some(before) => all.insert(key, before),
        None => all.remove(&key),
    };
}

fn usual_key(name: &str) -> String {
    format!("{USUAL_PREFIX}{name}")
}

fn last_end(ends: &BTreeMap<String, Nanos>, sides: &[&str]) -> Option<Nanos> {
    let in_the_way =
        |(field, _): &(&String, &Nanos)| sides.iter().any(|side| field.starts_with(side));
    ends.iter().filter(in_the_way).map(|(_, end)| *end).max()
}

/// A no, with the end of what is in the way if that is asked for.
fn refusal(end: Nanos, tell: &str, bare: Value, now: Now) -> Value {
    if tell != "1" {
        return bare;
    }
    Value::Array(vec![Value::Int(now.millis_until(end))])
}
