//! The scripts of a semaphore in Rust.

use redis::{RedisResult, Value};

use super::{
    Entry, LockValue, MILLI, Nanos, Now, Permit, Permits, Stored,
    scripts::{int, millis_until, number, refusal, refused, text, yes},
};
use crate::error::makes_no_sense;

impl Entry {
    pub(super) fn semaphore(
        &mut self,
        script: &str,
        words: &[&str],
        now: Now,
    ) -> RedisResult<Value> {
        let permits = match self.value() {
            None if !self.is_there() => Permits::new(),
            Some(LockValue::Semaphore(permits)) => permits.clone(),
            _ => return Err(refused("WRONGKIND", "something in place of a sorted set")),
        };
        match (script, words) {
            ("ACQUIRE_SEMAPHORE", [_, _, token, lease, count, who, tell]) => {
                let described = format!("{} {count} {who}", now.millis());
                let end = now.after(number(lease)?);
                let wanted = (*token, Permit { end, described });
                Ok(self.take(permits, wanted, number(count)?, tell, now))
            }
            ("RENEW_SEMAPHORE", [_, _, token, lease]) => {
                let mut permits = permits;
                let end = now.after(number(lease)?);
                let ours = permits.get_mut(*token);
                let is_ours = ours.map(|ours| ours.end = ours.end.max(end)).is_some();
                self.set_permits(permits);
                Ok(yes(is_ours))
            }
            ("RELEASE_SEMAPHORE", [_, _, token]) => {
                let mut permits = permits;
                let was_ours = permits.remove(*token).is_some();
                self.set_permits(permits);
                Ok(yes(was_ours))
            }
            _ => Err(makes_no_sense()),
        }
    }

    fn take(
        &mut self,
        mut permits: Permits,
        (token, mut wanted): (&str, Permit),
        count: u64,
        tell: &str,
        now: Now,
    ) -> Value {
        let held = permits.len() as u64;
        // The end of the permit that must end before one of `count` is free.
        let awaited = |permits: &Permits| {
            let mut ends: Vec<Nanos> = permits.values().map(|permit| permit.end).collect();
            ends.sort_unstable();
            let more = (permits.len() as u64).saturating_sub(count);
            let place = usize::try_from(more).unwrap_or(usize::MAX);
            ends.get(place).copied().unwrap_or(0)
        };
        if let Some(ours) = permits.get(token) {
            wanted = Permit {
                end: ours.end.max(wanted.end),
                described: ours.described.clone(),
            };
        } else if held >= count {
            return refusal(awaited(&permits), tell, Value::Nil, now);
        }
        permits.insert(token.to_owned(), wanted);
        let with_ours = (count + 1).saturating_sub(permits.len() as u64).max(1);
        let next = millis_until(awaited(&permits), now);
        self.set_permits(permits);
        match (with_ours, tell) {
            (1, "1") => Value::Array(vec![Value::Int(1), Value::Int(next)]),
            (with_ours, _) => Value::Int(int(with_ours)),
        }
    }

    pub(super) fn set_permits(&mut self, permits: Permits) {
        let last = permits.values().map(|permit| permit.end).max();
        self.lock = last.map(|end| Stored {
            value: LockValue::Semaphore(permits),
            end,
        });
    }
}

impl Permit {
    /// Returns the token, the end and the description of each permit, in the order of their ends.
    pub(super) fn told(permits: &Permits) -> Vec<Value> {
        let mut permits: Vec<_> = permits.iter().collect();
        permits.sort_by_key(|(_, permit)| permit.end);
        let told = permits.into_iter().flat_map(|(token, permit)| {
            let end = (permit.end / MILLI).to_string();
            [text(token), text(&end), text(&permit.described)]
        });
        told.collect()
    }
}
