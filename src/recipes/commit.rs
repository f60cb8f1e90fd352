//! Writing only while a lock is held, whatever its kind.

use redis::{Arg, Cmd, Connection, FromRedisValue, Pipeline, Value};

use crate::{
    error::{Error, Operation, Result},
    exchange::typed,
    name::LockName,
    token::Token,
    transaction::{command, watch},
};

/// How often a commit is repeated while the lock is still ours.
const COMMIT_ATTEMPTS: u32 = 8;

/// Whether values that were read say that the lock is ours.
type IsOurs<'a> = Box<dyn Fn(&[Value]) -> bool + 'a>;

/// What is read of a lock while it is watched, and whether that says that it is ours.
pub(crate) struct Proof<'a> {
    pub(crate) lock: &'a LockName,
    pub(crate) reads: Pipeline,
    pub(crate) is_ours: IsOurs<'a>,
}

impl<'a> Proof<'a> {
    /// Of a lock whose value is its holder's token.
    pub(crate) fn by_value(lock: &'a LockName, token: &'a Token) -> Self {
        let mut reads = Pipeline::with_capacity(1);
        reads.add_command(command(&["GET", lock.key()]));
        Self {
            lock,
            reads,
            is_ours: Box::new(|values| token.is_value(values.first())),
        }
    }
}

/// A transaction that is executed only while the lock is held.
pub(crate) struct Commit<'a> {
    pub(crate) operation: Operation<'a>,
    proof: Proof<'a>,
    /// What the caller writes.
    pub(crate) writes: Pipeline,
    /// What lets go of the lock behind that.
    pub(crate) release: Option<Cmd>,
    pub(crate) mark: Option<Mark>,
}

/// The key that says that a commit has been executed before, and for how long it does.
pub(crate) struct Mark {
    pub(crate) key: String,
    pub(crate) millis: u64,
}

impl Mark {
    fn setting(&self) -> Cmd {
        command(&["SET", &self.key, "done", "PX", &self.millis.to_string()])
    }
}

impl<'a> Commit<'a> {
    /// # Errors
    /// [`Error::Invalid`] for a command that cannot be part of a transaction.
    pub(crate) fn new(
        operation: Operation<'a>,
        proof: Proof<'a>,
        build: impl FnOnce(&mut Pipeline),
    ) -> Result<Self> {
        let mut writes = Pipeline::new();
        build(&mut writes);
        check_commands(&writes)?;
        Ok(Self {
            operation,
            proof,
            writes,
            release: None,
            mark: None,
        })
    }

    /// Releases the lock in the same transaction, by this command.
    pub(crate) fn releasing(mut self, release: Cmd) -> Self {
        self.release = Some(release);
        self
    }

    /// Once: leaves a mark in the same transaction, for so long, and does nothing where it is
    /// already.
    pub(crate) fn once(mut self, key: String, millis: u64) -> Self {
        self.mark = Some(Mark { key, millis });
        self
    }

    /// Watches the lock and reads what proves the hold, in one round trip, then writes. A
    /// transaction that came to nothing need not be a loss, since a renewal touches the key too:
    /// then all of it is done again. `None`: it was marked before.
    pub(crate) fn send(&self, conn: &mut Connection) -> Result<Option<Vec<Value>>> {
        let mut keys = vec![self.proof.lock.key()];
        let mut reads = self.proof.reads.clone();
        if let Some(mark) = &self.mark {
            keys.push(&mark.key);
            reads.add_command(command(&["EXISTS", &mark.key]));
        }
        let mut writes = self.writes.clone();
        let setting = self.mark.as_ref().map(Mark::setting);
        for command in self.release.iter().cloned().chain(setting) {
            writes.add_command(command);
        }
        for _ in 0..COMMIT_ATTEMPTS {
            let (watched, mut values) = watch(conn, self.operation, &keys, &reads)?;
            let marked = self.mark.as_ref().and_then(|_| values.pop());
            if !(self.proof.is_ours)(&values) {
                return Err(self.operation.lost());
            }
            if marked.is_some_and(|marked| marked != Value::Int(0)) {
                return Ok(None);
            }
            if let Some(mut results) = watched.commit(&writes)? {
                results.truncate(self.writes.len());
                return Ok(Some(results));
            }
        }
        Err(self.operation.contended())
    }

    /// What the caller's commands have answered.
    ///
    /// # Errors
    /// [`Error::Reply`] if that is of another type.
    pub(crate) fn answer<T: FromRedisValue>(&self, results: Vec<Value>) -> Result<T> {
        typed(&self.writes, results).map_err(|_| self.operation.misfit())
    }
}

/// Refuses what would end the transaction early, answer more than once or leave the connection
/// changed.
pub(crate) fn check_commands(writes: &Pipeline) -> Result<()> {
    for command in writes.cmd_iter() {
        let name = match command.args_iter().next() {
            Some(Arg::Simple(name)) => String::from_utf8_lossy(name).to_uppercase(),
            _ => String::new(),
        };
        if is_refused_in_transactions(&name) {
            return Err(Error::invalid(
                "pipeline",
                format!("`{name}` may not be part of a transaction"),
            ));
        }
    }
    Ok(())
}

/// By its name in capitals.
pub(crate) fn is_refused_in_transactions(name: &str) -> bool {
    const REFUSED: [&str; 19] = [
        "",
        "MULTI",
        "EXEC",
        "DISCARD",
        "WATCH",
        "UNWATCH",
        "SUBSCRIBE",
        "PSUBSCRIBE",
        "SSUBSCRIBE",
        "UNSUBSCRIBE",
        "PUNSUBSCRIBE",
        "SUNSUBSCRIBE",
        "MONITOR",
        "CLIENT",
        "QUIT",
        "RESET",
        "HELLO",
        "AUTH",
        "SELECT",
    ];
    REFUSED.contains(&name)
}
