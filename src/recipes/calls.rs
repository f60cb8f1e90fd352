//! Builds the call for each operation on a hold, by the kind of the lock.

use redis::Cmd;

use super::{
    hold::{Hold, LockKind},
    mutex, once,
    read_write::{self, Side},
    reentrant::{self, Levels},
    semaphore,
    transaction::Proof,
};
use crate::wire::{BusyReply, Call, command, releasing};

impl Hold {
    /// Attempts to acquire the lock. Safe to send twice. `leaves_intent`: a writer that is refused
    /// keeps new readers out.
    pub(crate) fn acquiring(
        &self,
        lease_millis: u64,
        leaves_intent: bool,
        busy_reply: BusyReply,
    ) -> Call {
        let call = match self.kind {
            LockKind::Mutex => mutex::acquiring(self, lease_millis, busy_reply),
            LockKind::Reentrant => reentrant::acquiring(self, lease_millis, busy_reply),
            LockKind::Read => read_write::acquiring_read(self, lease_millis, busy_reply),
            LockKind::Write => {
                read_write::acquiring_write(self, lease_millis, leaves_intent, busy_reply)
            }
            LockKind::Semaphore { .. } => semaphore::acquiring(self, lease_millis, busy_reply),
        };
        call.asking_for_a_lock().confirmed_by(self.replicas)
    }

    /// Renews the lease: the reply is 1 if the lock is still ours, 0 if not.
    pub(crate) fn renewal(&self, lease_millis: u64) -> Call {
        self.prolonging(lease_millis).confirmed_by(self.replicas)
    }

    /// Checks that the lock is ours, by a renewal of 1 ms, which changes nothing.
    pub(crate) fn look(&self) -> Call {
        self.prolonging(1)
    }

    fn prolonging(&self, lease_millis: u64) -> Call {
        match self.kind {
            LockKind::Mutex => mutex::renewing(self, lease_millis),
            LockKind::Reentrant => reentrant::renewing(self, lease_millis, Levels::Counted),
            LockKind::Read => read_write::renewing(self, Side::Reader, lease_millis),
            LockKind::Write => read_write::renewing(self, Side::Writer, lease_millis),
            LockKind::Semaphore { .. } => semaphore::renewing(self, lease_millis),
        }
    }

    /// Releases the hold: the reply is above 0 if the lock was ours.
    pub(crate) fn releasing(&self) -> Call {
        match self.kind {
            LockKind::Mutex => releasing(self.lock.key(), &self.token),
            LockKind::Reentrant => reentrant::releasing(self, Levels::Counted),
            LockKind::Read => read_write::releasing(self, Side::Reader),
            LockKind::Write => read_write::releasing(self, Side::Writer),
            LockKind::Semaphore { .. } => semaphore::releasing(self),
        }
    }

    /// Marks the run as done and releases the lock: the reply is 1 if the lock was ours. Safe to
    /// send twice. `None`: the hold is not for work that runs once per period.
    pub(crate) fn finishing(&self) -> Option<Call> {
        self.period_millis?;
        let call = once::finishing(&self.lock, (&self.token, &self.owner));
        Some(call.confirmed_by(self.replicas))
    }

    /// Removes a writer's intent when it stops waiting.
    pub(crate) fn withdrawing_intent(&self) -> Option<Call> {
        let is_writer = self.kind == LockKind::Write;
        is_writer.then(|| read_write::releasing(self, Side::Intent))
    }

    /// Returns the release for a transaction that watches the lock and has found it ours.
    pub(crate) fn giving_back_while_watched(&self) -> Cmd {
        match self.kind {
            LockKind::Mutex => command(&["DEL", self.lock.key()]),
            // The whole script, not `EVALSHA`: if unknown, that would fail inside `EXEC` after
            // other commands were executed.
            _ => self.releasing().whole(),
        }
    }

    /// Returns the proof that this hold exists and has not ended.
    pub(crate) fn proof(&self) -> Proof<'_> {
        let (lock, key) = (&self.lock, self.lock.key());
        let by_field = |side: Side| Proof::by_end(lock, key, "HGET", &side.field(&self.token));
        match self.kind {
            LockKind::Mutex => Proof::by_value(lock, &self.token),
            LockKind::Read => by_field(Side::Reader),
            LockKind::Write => by_field(Side::Writer),
            LockKind::Semaphore { .. } => Proof::by_end(lock, key, "ZSCORE", self.token.as_str()),
            LockKind::Reentrant => {
                let level = format!("t:{}", self.token);
                // The companion may still have the level of a lock that was deleted.
                let by_owner = Proof::by_owner(lock, &self.owner);
                let by_end = Proof::by_end(lock, &lock.companion(), "HGET", &level);
                Proof::of_all([by_owner, by_end])
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use redis::Value;

    use super::*;
    use crate::{name::Owner, token::Token};

    /// Each lock has its own number of reads.
    #[test]
    fn a_proof_of_several_locks_names_the_first_that_is_not_ours() {
        let token = Token::random();
        let owner = Owner::current_thread();
        let holds = [
            Hold::mutex("a", &token).unwrap(),
            Hold::reentrant("b", &owner, &token).unwrap(),
            Hold::read("c", &token).unwrap(),
        ];
        let proof = Proof::of_all(holds.iter().map(Hold::proof));
        let ours = [
            Value::BulkString(token.as_str().into()),
            Value::BulkString(b"1".into()),
            Value::Int(1),
            Value::Okay,
            Value::Int(1),
            Value::Int(1),
            Value::Okay,
            Value::Int(1),
        ];
        assert_eq!(proof.not_ours(&ours), None);
        for (missing, name) in [(0, "a"), (1, "b"), (4, "b"), (7, "c")] {
            let mut values = ours.clone();
            values[missing] = Value::Nil;
            assert_eq!(proof.not_ours(&values), Some(name));
            assert_eq!(proof.not_ours(&ours[..missing]), Some(name));
        }
        assert_eq!(proof.keys, ["lock:a", "lock:b", "lock:c"]);
        assert_eq!(proof.made.len(), 2);
    }
}
