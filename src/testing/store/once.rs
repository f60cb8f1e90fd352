//! What the scripts for work that is done once in a period do.

use redis::{RedisResult, Value};

use super::{
    Held, MILLI, Now, Run, Store,
    replies::{digits, number, yes},
};
use crate::error::makes_no_sense;

impl Store {
    pub(super) fn run_once(
        &mut self,
        script: &str,
        words: &[&str],
        now: Now,
    ) -> RedisResult<Value> {
        match (script, words) {
            ("LAST_RUN", [mark]) => Ok(self.last_run(mark, now).unwrap_or(Value::Nil)),
            ("FINISH_RUN", [key, mark, token, who, kept]) => {
                let is_ours = matches!(
                    self.locks.get(*key).map(|stored| &stored.what),
                    Some(Held::Mutex(holder)) if holder == token
                );
                if !is_ours {
                    let run = self.runs.get(*mark);
                    return Ok(yes(run.is_some_and(|run| run.token == *token)));
                }
                let run = Run {
                    at: now.millis(),
                    by: (*who).to_owned(),
                    token: (*token).to_owned(),
                    end: now.after(number(kept)?.max(self.was_kept(mark, now))),
                };
                self.runs.insert((*mark).to_owned(), run);
                self.locks.remove(*key);
                Ok(yes(true))
            }
            ("ACQUIRE_MUTEX_UNLESS_RUN", [key, beside, mark, rest @ .., period]) => {
                if let Some(run) = self.run_within(mark, number(period)?, now) {
                    return Ok(run);
                }
                self.mutex("ACQUIRE_MUTEX", &[&[*key, *beside], rest].concat(), now)
            }
            ("ACQUIRE_UNFENCED_MUTEX_UNLESS_RUN", [key, mark, rest @ .., period]) => {
                if let Some(run) = self.run_within(mark, number(period)?, now) {
                    return Ok(run);
                }
                self.mutex("ACQUIRE_UNFENCED_MUTEX", &[&[*key], rest].concat(), now)
            }
            _ => Err(makes_no_sense()),
        }
    }

    /// For how many milliseconds the last mark was kept, if it is there.
    fn was_kept(&self, mark: &str, now: Now) -> u64 {
        let last = self.runs.get(mark).filter(|run| run.end > now.0);
        last.map_or(0, |last| (last.end / MILLI).saturating_sub(last.at))
    }

    fn run_within(&self, mark: &str, period_millis: u64, now: Now) -> Option<Value> {
        let at = self.runs.get(mark)?.at;
        let is_within = now.millis().abs_diff(at) <= period_millis;
        is_within.then(|| self.last_run(mark, now)).flatten()
    }

    fn last_run(&self, mark: &str, now: Now) -> Option<Value> {
        let run = self.runs.get(mark).filter(|run| run.end > now.0)?;
        let text = |text: &str| Value::BulkString(text.into());
        let parts = vec![
            text("ran"),
            digits(run.at),
            text(&run.by),
            digits(now.millis()),
        ];
        Some(Value::Array(parts))
    }
}
