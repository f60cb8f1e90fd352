//! Records commits, and does not execute them.

use std::collections::VecDeque;

use redis::{RedisResult, Value};

use super::{Nanos, Now, Store};
use crate::{
    error::{Error, Result},
    server::{CommitOutcome, CommitRequest},
    testing::commit::Commit,
    wire::yes_or_no,
};

/// The recorded commits, and the replies to the next ones.
#[derive(Default)]
pub(in crate::testing) struct Commits {
    executed: Vec<CommitRecord>,
    /// Replies to the next commits, first in, first out: one value for each command.
    answers: VecDeque<Vec<Value>>,
}

struct CommitRecord {
    at: Nanos,
    commit: Commit,
    mark: Option<Mark>,
}

/// Shows until its end that the commit was executed.
struct Mark {
    key: String,
    end: Nanos,
    by: String,
}

impl Commits {
    pub(in crate::testing) fn executed(&self) -> Vec<Commit> {
        self.executed.iter().map(|it| it.commit.clone()).collect()
    }

    pub(in crate::testing) fn answer_next(&mut self, answers: Vec<Value>) {
        self.answers.push_back(answers);
    }

    pub(super) fn forget_since(&mut self, moment: Nanos) {
        self.executed.retain(|executed| executed.at < moment);
    }

    fn marked(&self, key: &str, now: Now) -> Option<CommitOutcome> {
        self.executed.iter().find_map(|it| {
            let mark = it.mark.as_ref();
            let mark = mark.filter(|mark| mark.key == key && mark.end > now.0)?;
            Some(CommitOutcome::Before {
                at: Now(it.at).millis(),
                by: mark.by.clone(),
                now: now.millis(),
            })
        })
    }

    /// One reply for each command: those that a test has set, or `OK`.
    fn next_answers(&mut self, commands: usize) -> Result<Vec<Value>> {
        let Some(answers) = self.answers.pop_front() else {
            return Ok(vec![Value::Okay; commands]);
        };
        if answers.len() == commands {
            return Ok(answers);
        }
        let count = answers.len();
        let reason = format!("{count} for a commit of {commands} commands");
        Err(Error::invalid("answers", reason))
    }
}

impl Store {
    /// Returns the outcome, and the lock's key if the lock was released.
    ///
    /// # Errors
    /// The replies that a test has set do not fit the commit. Nothing was executed.
    pub(in crate::testing) fn commit(
        &mut self,
        request: &CommitRequest<'_>,
        now: Now,
    ) -> Result<(RedisResult<CommitOutcome>, Option<String>)> {
        for (lock, look) in request.looks.iter().enumerate() {
            let look = self.run(look.parts(), now).answer;
            match look.and_then(|answer| yes_or_no(&answer)) {
                Ok(true) => {}
                Ok(false) => return Ok((Ok(CommitOutcome::Lost(lock)), None)),
                Err(error) => return Ok((Err(error), None)),
            }
        }
        if let Some(before) = (request.mark).and_then(|mark| self.commits.marked(mark.key, now)) {
            return Ok((Ok(before), None));
        }
        let answers = self.commits.next_answers(request.writes.len())?;
        self.commits.executed.push(CommitRecord {
            at: now.0,
            commit: Commit::new(request.lock, request.writes),
            mark: request.mark.map(|mark| Mark {
                key: mark.key.to_owned(),
                end: now.after(mark.millis),
                by: mark.by.to_owned(),
            }),
        });
        let release = request.release.map(|call| self.run(call.parts(), now));
        let changed = release.and_then(|ran| ran.changed);
        Ok((Ok(CommitOutcome::Executed(answers)), changed))
    }
}
