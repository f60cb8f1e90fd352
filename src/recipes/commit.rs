//! Writing only while a lock is held, whatever its kind.

use redis::{Connection, FromRedisValue, Pipeline, Value};

use crate::{
    error::{Error, Operation, Result},
    exchange::typed,
    name::LockName,
    transaction::watch,
};

/// How often a commit is repeated while the lock is still ours.
const COMMIT_ATTEMPTS: u32 = 8;

/// Watches the lock and reads what proves the hold, in one round trip, then writes. A transaction that came to nothing
/// need not be a loss, since a renewal touches the key too: then all of it is done again.
pub(crate) fn commit<T: FromRedisValue>(
    conn: &mut Connection,
    operation: Operation<'_>,
    lock: &LockName,
    read: &Pipeline,
    is_ours: &dyn Fn(&[Value]) -> bool,
    mut build: impl FnMut(&mut Pipeline),
) -> Result<T> {
    for _ in 0..COMMIT_ATTEMPTS {
        let mut writes = Pipeline::new();
        build(&mut writes);
        check_commands(&writes)?;
        let (watched, values) = watch(conn, operation, &[lock.key()], read)?;
        if !is_ours(&values) {
            return Err(operation.lost());
        }
        if let Some(results) = watched.commit(&writes)? {
            return typed(&writes, results).map_err(|_| operation.misfit());
        }
    }
    Err(operation.contended())
}

/// Refuses what would end the transaction early, answer more than once or leave the connection changed.
fn check_commands(writes: &Pipeline) -> Result<()> {
    const REFUSED: [&str; 18] = [
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
    for command in writes.cmd_iter() {
        let name = match command.args_iter().next() {
            Some(redis::Arg::Simple(name)) => String::from_utf8_lossy(name).to_uppercase(),
            _ => String::new(),
        };
        if name.is_empty() || REFUSED.contains(&name.as_str()) {
            return Err(Error::invalid(
                "pipeline",
                format!("`{name}` may not be part of a transaction"),
            ));
        }
    }
    Ok(())
}
