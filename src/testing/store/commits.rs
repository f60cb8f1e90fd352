//! Transactions, and the record of those under a lock.

use redis::Value;

use super::{
    Now, Store,
    data::{Words, first_key, lock_key, texts},
};
use crate::testing::commit::Commit;

/// A key, and the number of its changes when it was watched.
pub(in crate::testing) type Watching = (String, u64);

impl Store {
    pub(in crate::testing) fn watch(&mut self, key: &str, now: Now) -> Watching {
        // A key that has expired counts as changed.
        self.change(key, now, |_| ());
        let changes = self.changes.get(key).copied().unwrap_or(0);
        (key.to_owned(), changes)
    }

    /// Executes a transaction. `None`: a watched key has changed, and nothing was executed.
    pub(in crate::testing) fn execute(
        &mut self,
        watched: &[Watching],
        commands: &[Words],
        now: Now,
    ) -> Option<Vec<Value>> {
        let has_changed = |it: &Watching| self.watch(&it.0, now) != *it;
        if watched.iter().any(has_changed) {
            return None;
        }
        self.record(watched, commands);
        let replies = commands.iter().map(|command| self.command(command, now));
        Some(replies.collect())
    }

    /// Records what a job writes under a lock: not its release, nor the mark of a
    /// [`commit_once`](crate::Lease::commit_once).
    fn record(&mut self, watched: &[Watching], commands: &[Words]) {
        let locks: Vec<&str> = self
            .locks_of(watched.iter().map(|(key, _)| &**key))
            .collect();
        let is_a_write = |words: &Vec<String>| {
            let words: Vec<&str> = words.iter().map(|word| &**word).collect();
            !first_key(&words).is_some_and(|key| locks.contains(&lock_key(key)))
        };
        let writes: Vec<_> = commands.iter().map(texts).filter(is_a_write).collect();
        if locks.is_empty() || writes.is_empty() {
            return;
        }
        self.commits.push(Commit {
            lock: names_of(&locks),
            commands: writes,
        });
    }

    /// Returns those of these keys that are locks.
    fn locks_of<'a>(&self, keys: impl Iterator<Item = &'a str>) -> impl Iterator<Item = &'a str> {
        keys.filter(|key| self.is_lock(key))
    }

    /// Returns the names of the locks among these keys.
    pub(in crate::testing) fn lock_names(&self, keys: &[&str]) -> String {
        names_of(&self.locks_of(keys.iter().copied()).collect::<Vec<_>>())
    }
}

/// Returns the name of a lock, or its key if it has another prefix.
pub(in crate::testing) fn name_of(key: &str) -> &str {
    key.strip_prefix("lock:").unwrap_or(key)
}

fn names_of(keys: &[&str]) -> String {
    let names: Vec<&str> = keys.iter().map(|key| name_of(key)).collect();
    names.join(", ")
}
