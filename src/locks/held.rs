//! Lists the locks that are held now: finds their names by `SCAN`, then looks at each.

use std::{
    collections::{BTreeMap, BTreeSet, btree_map},
    iter,
    time::Duration,
};

use super::{Inspection, Locks};
use crate::{
    error::{Error, Operation, Result},
    name::LockName,
    pool::PooledConnection,
    time::Deadline,
    wire::ask,
};

/// The number of keys that the server looks at in one call, which blocks it for well under a
/// millisecond.
const PAGE: usize = 1_000;
const MOST_NAMES: usize = 10_000;
const LONGEST: Duration = Duration::from_secs(30);

/// The locks that [`Locks::held`] found, by name.
#[derive(Clone, Debug)]
#[must_use]
pub struct HeldLocks {
    locks: BTreeMap<String, Inspection>,
    failures: Vec<Error>,
    is_cut: bool,
}

impl HeldLocks {
    /// Returns the names in order, each with its holders. The length of the iterator is the number
    /// of locks.
    #[must_use]
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &Inspection)> {
        self.into_iter()
    }

    /// Returns false if locks may be missing: the names were too many, the server has too many keys
    /// for the time limit, or there are [failures](Self::failures).
    #[must_use]
    pub fn is_complete(&self) -> bool {
        !self.is_cut && self.failures.is_empty()
    }

    /// Returns why locks are missing: for a lock, in the [context](Error::context) of the error, or
    /// for all locks of one master of a cluster.
    #[must_use]
    pub fn failures(&self) -> &[Error] {
        &self.failures
    }
}

impl<'a> IntoIterator for &'a HeldLocks {
    type Item = (&'a str, &'a Inspection);
    type IntoIter = iter::Map<btree_map::Iter<'a, String, Inspection>, Named<'a>>;

    fn into_iter(self) -> Self::IntoIter {
        self.locks.iter().map(|(name, seen)| (&**name, seen))
    }
}

type Named<'a> = fn((&'a String, &'a Inspection)) -> (&'a str, &'a Inspection);

impl Locks {
    // Not public: rustdoc would list it before the functions of mod.rs, which therefore has
    // `Locks::held`.
    pub(super) fn list_held(&self, begin: &str) -> Result<HeldLocks> {
        Operation::new("Locks::held", begin).run(|operation| {
            self.stacks.process.refuse_forked_child()?;
            let deadline = Deadline::after(LONGEST);
            // Refuses a prefix that no lock can have.
            LockName::prefixed(&self.settings.prefix, "name")?;
            let mut names = Names {
                operation,
                begin,
                prefix: &self.settings.prefix,
                most: MOST_NAMES,
                found: BTreeSet::new(),
                is_cut: false,
            };
            let mut failures = Vec::new();
            let servers = self.stacks.lend_each()?;
            let all = servers.len();
            for connection in servers {
                let read =
                    connection.and_then(|mut connection| names.read(&mut connection, deadline));
                failures.extend(read.err().map(|error| operation.named(error)));
            }
            if let Some(error) = failures.first().filter(|_| failures.len() == all) {
                return Err(error.clone());
            }
            let mut locks = BTreeMap::new();
            for name in names.found {
                if deadline.has_passed() {
                    names.is_cut = true;
                    break;
                }
                match self.lock(&name).inspect() {
                    Ok(seen) if seen.is_held() && !seen.is_foreign() => {
                        locks.insert(name, seen);
                    }
                    Ok(_) => {}
                    Err(error) => failures.push(error),
                }
            }
            Ok(HeldLocks {
                locks,
                failures,
                is_cut: names.is_cut,
            })
        })
    }
}

/// The names of the keys found that can be locks.
struct Names<'a> {
    operation: Operation<'a>,
    prefix: &'a str,
    begin: &'a str,
    most: usize,
    found: BTreeSet<String>,
    /// Names may be missing.
    is_cut: bool,
}

impl Names<'_> {
    /// Reads the names of one server, until the deadline or until there are too many.
    fn read(&mut self, connection: &mut PooledConnection, deadline: Deadline) -> Result<()> {
        let pattern = literally(&[self.prefix, self.begin].concat()) + "*";
        let mut cursor = "0".to_owned();
        loop {
            let mut scan = redis::cmd("SCAN");
            scan.arg(&cursor).arg("MATCH").arg(&pattern);
            scan.arg("COUNT").arg(PAGE);
            let page: (String, Vec<Vec<u8>>) =
                ask(&scan, connection).map_err(|error| self.operation.unanswered(None, error))?;
            for key in page.1 {
                self.add(key);
            }
            if self.is_cut || page.0 == "0" {
                return Ok(());
            }
            if deadline.has_passed() {
                self.is_cut = true;
                return Ok(());
            }
            cursor = page.0;
        }
    }

    /// Adds a key, unless it is the companion or a mark of a lock: no lock's name looks like those.
    /// If there are too many names, drops the last.
    fn add(&mut self, key: Vec<u8>) {
        let key = String::from_utf8(key).unwrap_or_default();
        let Some(name) = key.strip_prefix(self.prefix) else {
            return;
        };
        if LockName::prefixed(self.prefix, name).is_ok() {
            self.found.insert(name.to_owned());
        }
        if self.found.len() > self.most {
            self.found.pop_last();
            self.is_cut = true;
        }
    }
}

/// Returns a glob pattern that matches only this text.
fn literally(text: &str) -> String {
    let mut pattern = String::new();
    for letter in text.chars() {
        if "\\*?[]^".contains(letter) {
            pattern.push('\\');
        }
        pattern.push(letter);
    }
    pattern
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_too_many_names_the_first_stay_and_the_list_is_cut() {
        let mut names = Names {
            operation: Operation::new("Locks::held", ""),
            prefix: "lock:",
            begin: "",
            most: 2,
            found: BTreeSet::new(),
            is_cut: false,
        };
        let add = |name: &str| names.add(name.into());
        ["lock:c", "{lock:a}:lease", "lock:b"]
            .into_iter()
            .for_each(add);
        assert!(!names.is_cut);
        names.add("lock:a".into());
        assert!(names.is_cut && names.found.into_iter().eq(["a", "b"]));
    }
}
