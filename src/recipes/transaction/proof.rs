//! The proof that a transaction's locks are held. `EXEC` decides by it.
//!
//! `EXEC` does nothing if a watched key has changed or *expired*. So each hold needs a watched key
//! that expires when the hold ends. A mutex is such a key. The key of any other kind stays while
//! somebody else holds the lock too, so a script gives the transaction a key of its own with the
//! end of the hold. The lock is watched before the script reads that end. The proof is watched
//! before it is read, since `WATCH` does not notice that a key has already expired. If the hold is
//! renewed meanwhile, the proof expires too early, and the transaction is repeated.

use redis::{Cmd, Pipeline, ServerError, Value};

use crate::{
    error::{Error, Operation, Result, wrong_key},
    name::{LockName, Owner},
    recipes::number,
    token::Token,
    wire::{command, scripts, words},
};

scripts! {
    PROVE = "prove.lua";
}

/// The keys and reads that prove, while the locks are watched, that they are ours.
#[derive(Default)]
pub(crate) struct Proof<'a> {
    /// The keys of the locks, which are watched first.
    pub(in crate::recipes) keys: Vec<&'a str>,
    /// The keys that are made for this transaction, and deleted with it.
    pub(in crate::recipes) made: Vec<String>,
    reads: Pipeline,
    checks: Vec<Check<'a>>,
}

/// The fact that the replies to some reads have to show about the lock of this name.
struct Check<'a> {
    name: &'a str,
    reads: usize,
    fact: Fact<'a>,
}

enum Fact<'a> {
    /// The key has this value.
    Value(&'a Token),
    /// The count is above 0.
    Counted,
    /// The proof exists after it has been watched.
    ProofExists,
}

impl Fact<'_> {
    fn is_shown_by(&self, values: &[Value]) -> bool {
        match self {
            Self::Value(token) => token.is_value(values.first()),
            Self::Counted => values.first().and_then(number) > Some(0),
            Self::ProofExists => matches!(values, [_, _, Value::Int(1)]),
        }
    }
}

impl<'a> Proof<'a> {
    /// Proves that a lock is ours whose value is its holder's token: its key ends with the hold.
    pub(crate) fn by_value(lock: &'a LockName, token: &'a Token) -> Self {
        let read = command(&["GET", lock.key()]);
        Self::new(lock, [read], Fact::Value(token))
    }

    /// Proves that a hold has not ended whose end is at this key: `read`, `HGET` or `ZSCORE`, reads
    /// it from the field.
    pub(crate) fn by_end(lock: &'a LockName, key: &str, read: &str, field: &str) -> Self {
        // The id is random, not the token of the hold: errors may name keys, and two threads may
        // commit at once.
        let proof = lock.proof(Token::random().as_str());
        let reads = [
            // The whole script: an unknown hash would be no proof.
            PROVE.on([key, &proof]).arg(read).arg(field).whole(),
            command(&["WATCH", &proof]),
            command(&["EXISTS", &proof]),
        ];
        Self {
            made: vec![proof],
            ..Self::new(lock, reads, Fact::ProofExists)
        }
    }

    /// Proves that this owner holds a reentrant lock.
    pub(crate) fn by_owner(lock: &'a LockName, owner: &Owner) -> Self {
        let read = command(&["HGET", lock.key(), owner.as_str()]);
        Self::new(lock, [read], Fact::Counted)
    }

    fn new<const READS: usize>(lock: &'a LockName, reads: [Cmd; READS], fact: Fact<'a>) -> Self {
        let mut pipeline = Pipeline::with_capacity(READS);
        for read in reads {
            pipeline.add_command(read);
        }
        let check = Check {
            name: lock.text(),
            reads: READS,
            fact,
        };
        Self {
            keys: vec![lock.key()],
            made: Vec::new(),
            reads: pipeline,
            checks: vec![check],
        }
    }

    /// Proves all of these.
    pub(crate) fn of_all(proofs: impl IntoIterator<Item = Self>) -> Self {
        let both = |mut all: Self, next: Self| {
            all.keys.extend(next.keys);
            all.keys.dedup();
            all.made.extend(next.made);
            for read in next.reads.cmd_iter() {
                all.reads.add_command(read.clone());
            }
            all.checks.extend(next.checks);
            all
        };
        proofs.into_iter().reduce(both).unwrap_or_default()
    }

    /// Returns the packed reads and their number.
    pub(super) fn packed(&self) -> (Vec<u8>, usize) {
        (self.reads.get_packed_pipeline(), self.reads.len())
    }

    /// Returns the name of the first lock that these values do not prove ours.
    pub(in crate::recipes) fn not_ours(&self, values: &[Value]) -> Option<&'a str> {
        let mut rest = values;
        let mut checks = self.checks.iter();
        let failed = checks.find(|check| {
            let (these, others) = rest.split_at(rest.len().min(check.reads));
            rest = others;
            !check.fact.is_shown_by(these)
        });
        failed.map(|check| check.name)
    }

    /// # Errors
    /// [`Error::Lost`]: names the first lock that is not ours.
    pub(super) fn check(&self, operation: Operation<'_>, values: &[Value]) -> Result<()> {
        for (value, read) in values.iter().zip(self.reads.cmd_iter()) {
            if let Value::ServerError(refusal) = value {
                let mut words = words(read);
                let key = match words.next() {
                    Some(b"EVAL") => words.nth(2),
                    _ => words.next(),
                };
                return Err(read_refused(operation, key, refusal));
            }
        }
        self.not_ours(values).map_or(Ok(()), |name| {
            Err(Operation::new(operation.name, name).lost())
        })
    }
}

/// Returns the error for an error reply to a read of this key.
pub(super) fn read_refused(
    operation: Operation<'_>,
    key: Option<&[u8]>,
    refusal: &ServerError,
) -> Error {
    let refusal = refusal.clone().into();
    match key.map(String::from_utf8_lossy) {
        Some(key) if wrong_key(&refusal).is_some() => {
            operation.wrong_kind(format!("a value of another type at `{key}`"))
        }
        _ => operation.failed(refusal),
    }
}
