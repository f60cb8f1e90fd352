//! What the scripts of each kind do, with a map in place of the server's keys.

use std::collections::BTreeMap;

use redis::{RedisResult, Value};

use super::{
    Entered, Held, Nanos, Now, Store, Stored, last_end, refusal,
    replies::{number, refused, wrong_kind, wrong_type, yes},
};
use crate::error::makes_no_sense;

impl Store {
    pub(super) fn mutex(&mut self, script: &str, words: &[&str], now: Now) -> RedisResult<Value> {
        let key = words.first().copied().unwrap_or_default();
        let holder = match self.locks.get(key).map(|stored| &stored.what) {
            None => None,
            Some(Held::Mutex(holder)) => Some(holder.as_str()),
            Some(_) => return Err(wrong_type()),
        };
        match (script, words) {
            ("ACQUIRE_MUTEX", [_, _, token, lease, who, more @ ..]) if more.len() <= 2 => {
                let tell = more.first().unwrap_or(&"0");
                let reserved = more.get(1).unwrap_or(&"0");
                if holder.is_some_and(|holder| holder != *token) {
                    return Ok(self.refusal(key, tell, Value::Nil, now));
                }
                let is_known = holder.is_some() && self.companion_is_of(key, token);
                let most_reserved = number(reserved)?;
                if !is_known {
                    self.grant(key, token, who, most_reserved, now);
                }
                let what = || Held::Mutex((*token).to_owned());
                self.hold(key, now.after(number(lease)?), what);
                Ok(self.numbers(key, most_reserved > 0))
            }
            ("ACQUIRE_UNFENCED_MUTEX", [_, token, lease, tell]) => {
                if holder.is_some_and(|holder| holder != *token) {
                    return Ok(self.refusal(key, tell, Value::Nil, now));
                }
                let what = || Held::Mutex((*token).to_owned());
                self.hold(key, now.after(number(lease)?), what);
                Ok(yes(true))
            }
            // With its companion, or without.
            ("RENEW_MUTEX", [_, _, token, lease] | [_, token, lease]) if holder == Some(token) => {
                self.extend(key, now.after(number(lease)?));
                Ok(yes(true))
            }
            ("RELEASE_MUTEX", [_, token]) if holder == Some(token) => {
                self.locks.remove(key);
                Ok(yes(true))
            }
            ("RENEW_MUTEX", [_, _, _, _] | [_, _, _]) | ("RELEASE_MUTEX", [_, _]) => Ok(yes(false)),
            _ => Err(makes_no_sense()),
        }
    }

    pub(super) fn reentrant(
        &mut self,
        script: &str,
        words: &[&str],
        now: Now,
    ) -> RedisResult<Value> {
        let key = words.first().copied().unwrap_or_default();
        match self.locks.get(key).map(|stored| &stored.what) {
            None | Some(Held::Reentrant(_)) => {}
            Some(Held::Mutex(_)) => return Err(wrong_type()),
            Some(Held::ReadWrite(_)) => {
                return Err(wrong_kind("a hash that is not one owner and a count"));
            }
        }
        match (script, words) {
            ("ACQUIRE_REENTRANT", [_, _, owner, token, lease, tell]) => {
                let end = now.after(number(lease)?);
                self.enter(key, (owner, token), end, tell, now)
            }
            ("RENEW_REENTRANT", [_, _, owner, token, lease, _]) => {
                let end = now.after(number(lease)?);
                Ok(yes(self.renew_level(key, (owner, token), end, now)))
            }
            ("RELEASE_REENTRANT", [_, _, owner, token, _]) => {
                Ok(Value::Int(self.leave(key, (owner, token), now)))
            }
            _ => Err(makes_no_sense()),
        }
    }

    /// Who is in a reentrant lock, if it is this owner.
    fn entered_by(&mut self, key: &str, owner: &str) -> Option<&mut Entered> {
        match &mut self.locks.get_mut(key)?.what {
            Held::Reentrant(entered) if entered.owner == owner => Some(entered),
            _ => None,
        }
    }

    fn enter(
        &mut self,
        key: &str,
        (owner, token): (&str, &str),
        end: Nanos,
        tell: &str,
        now: Now,
    ) -> RedisResult<Value> {
        if !self.locks.contains_key(key) {
            self.grant(key, token, owner, 0, now);
            let owner = owner.to_owned();
            let nobody_yet = Entered {
                owner,
                ..Entered::default()
            };
            self.hold(key, end, || Held::Reentrant(nobody_yet));
        }
        let Some(entered) = self.entered_by(key, owner) else {
            return Ok(self.refusal(key, tell, Value::Nil, now));
        };
        entered.end_what_has_passed(now);
        if entered.released.as_deref() == Some(token) {
            let reason = "its acquisition has been given back already".to_owned();
            return Err(refused("INVALIDTOKEN", reason));
        }
        let own_end = entered.acquisitions.entry(token.to_owned()).or_default();
        *own_end = end.max(*own_end);
        let count = entered.count();
        self.extend(key, end);
        Ok(Value::Array(vec![self.fence(key), Value::Int(count)]))
    }

    /// False: this acquisition is not counted, or is over.
    fn renew_level(
        &mut self,
        key: &str,
        (owner, token): (&str, &str),
        end: Nanos,
        now: Now,
    ) -> bool {
        let Some(entered) = self.entered_by(key, owner) else {
            return false;
        };
        entered.end_what_has_passed(now);
        let own_end = entered.acquisitions.get_mut(token);
        let Some(own_end) = own_end.filter(|own_end| **own_end >= now.0) else {
            return false;
        };
        *own_end = end.max(*own_end);
        self.extend(key, end);
        true
    }

    /// How often the owner held the lock until now.
    fn leave(&mut self, key: &str, (owner, token): (&str, &str), now: Now) -> i64 {
        let Some(entered) = self.entered_by(key, owner) else {
            return 0;
        };
        entered.end_what_has_passed(now);
        let count = entered.count();
        if entered.acquisitions.remove(token).is_none() {
            return 0;
        }
        entered.released = Some(token.to_owned());
        let last = entered.last_end();
        if last <= now.0 {
            self.locks.remove(key);
            return 1;
        }
        if let Some(stored) = self.locks.get_mut(key) {
            stored.end = stored.end.min(last);
        }
        count
    }

    pub(super) fn read_write(
        &mut self,
        script: &str,
        words: &[&str],
        now: Now,
    ) -> RedisResult<Value> {
        let key = words.first().copied().unwrap_or_default();
        let ends = match self.locks.get(key).map(|stored| &stored.what) {
            None => BTreeMap::new(),
            Some(Held::ReadWrite(ends)) => ends.clone(),
            Some(Held::Mutex(_)) => return Err(wrong_type()),
            Some(Held::Reentrant(_)) => {
                return Err(wrong_kind("a hash that is no read-write lock"));
            }
        };
        match (script, words) {
            ("ACQUIRE_READ", [_, token, lease, tell]) => {
                if ends.contains_key(&format!("w:{token}")) {
                    let reason = "it holds this lock for writing".to_owned();
                    return Err(refused("INVALIDTOKEN", reason));
                }
                let ours = format!("r:{token}");
                if !ends.contains_key(&ours)
                    && let Some(last) = last_end(&ends, &["w:", "i:"])
                {
                    return Ok(refusal(last, tell, yes(false), now));
                }
                self.store(key, ends, &ours, now.after(number(lease)?));
                Ok(yes(true))
            }
            ("ACQUIRE_WRITE", _) => self.write(words, ends, now),
            ("RENEW_READ_WRITE", [_, field, lease] | [_, _, field, lease])
                if ends.contains_key(*field) =>
            {
                self.store(key, ends, field, now.after(number(lease)?));
                Ok(yes(true))
            }
            ("RELEASE_READ_WRITE", [_, field]) if ends.contains_key(*field) => {
                let mut ends = ends;
                ends.remove(*field);
                self.store_all(key, ends);
                Ok(yes(true))
            }
            ("RENEW_READ_WRITE", [_, _, _] | [_, _, _, _]) | ("RELEASE_READ_WRITE", [_, _]) => {
                Ok(yes(false))
            }
            _ => Err(makes_no_sense()),
        }
    }

    fn write(
        &mut self,
        words: &[&str],
        mut ends: BTreeMap<String, Nanos>,
        now: Now,
    ) -> RedisResult<Value> {
        let &[key, _, token, lease, waits, who, tell] = words else {
            return Err(makes_no_sense());
        };
        let (ours, intent) = (format!("w:{token}"), format!("i:{token}"));
        if ends.contains_key(&format!("r:{token}")) {
            let reason = "it holds this lock for reading".to_owned();
            return Err(refused("INVALIDTOKEN", reason));
        }
        if !ends.contains_key(&ours)
            && let Some(last) = last_end(&ends, &["r:", "w:"])
        {
            let stands_until = ends.get(&intent).copied().unwrap_or(0);
            if waits == "1" && stands_until < now.after(500) {
                self.store(key, ends, &intent, now.after(1_000));
            }
            return Ok(refusal(last, tell, Value::Nil, now));
        }
        let is_known = ends.contains_key(&ours) && self.companion_is_of(key, token);
        if !is_known {
            self.grant(key, token, who, 0, now);
        }
        ends.remove(&intent);
        self.store(key, ends, &ours, now.after(number(lease)?));
        Ok(self.fence(key))
    }

    /// A holder in a read-write lock ends then, or later if it did.
    fn store(&mut self, key: &str, mut ends: BTreeMap<String, Nanos>, field: &str, end: Nanos) {
        let stored = ends.entry(field.to_owned()).or_default();
        *stored = end.max(*stored);
        self.store_all(key, ends);
    }

    fn store_all(&mut self, key: &str, ends: BTreeMap<String, Nanos>) {
        let Some(last) = ends.values().max().copied() else {
            self.locks.remove(key);
            return;
        };
        let stored = Stored {
            what: Held::ReadWrite(ends),
            end: last,
        };
        self.locks.insert(key.to_owned(), stored);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_of_another_shape_than_the_script_takes_is_an_error_and_no_answer() {
        // At the most: the last two of a mutex need not be there.
        let calls: [(&str, usize); 10] = [
            ("ACQUIRE_MUTEX", 7),
            ("ACQUIRE_UNFENCED_MUTEX", 4),
            ("RENEW_MUTEX", 4),
            ("RELEASE_MUTEX", 2),
            ("ACQUIRE_REENTRANT", 6),
            ("RENEW_REENTRANT", 6),
            ("RELEASE_REENTRANT", 5),
            ("ACQUIRE_READ", 4),
            ("RENEW_READ_WRITE", 4),
            ("RELEASE_READ_WRITE", 2),
        ];
        for (script, count) in calls {
            let words = |count| vec!["1"; count];
            let mut store = Store::default();
            let answer = |ran: super::super::Ran| ran.answer;
            let right = answer(store.run((script, words(count)), Now(0)));
            assert!(right.is_ok(), "{script}: {right:?}");
            let mut store = Store::default();
            let wrong = answer(store.run((script, words(count + 1)), Now(0)));
            assert!(wrong.is_err(), "{script}: {wrong:?}");
        }
        let unknown = Store::default().run(("NO_SUCH_SCRIPT", vec!["1"]), Now(0));
        assert!(unknown.answer.is_err(), "{unknown:?}");
    }
}
