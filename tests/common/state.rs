//! A server's complete data, to check that nothing has changed.

use std::collections::BTreeMap;

use anyhow::Context;
use redis::{Commands, Connection};

/// Equal to another state if nothing was written in between, not even an expiry or an unchanged
/// value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    /// The server's counter of changes, including those undone.
    changes: u64,
    keys: BTreeMap<String, Vec<u8>>,
}

impl State {
    /// The current state.
    pub fn of(conn: &mut Connection) -> anyhow::Result<Self> {
        let mut keys = BTreeMap::new();
        for key in conn.keys::<_, Vec<String>>("*")? {
            let kind: String = redis::cmd("TYPE").arg(&key).query(conn)?;
            let content = if kind == "hash" {
                // The dump of a large hash has another order each time.
                let fields: BTreeMap<Vec<u8>, Vec<u8>> = conn.hgetall(&key)?;
                format!("{fields:?}").into_bytes()
            } else {
                redis::cmd("DUMP").arg(&key).query(conn)?
            };
            keys.insert(key, content);
        }
        let info: String = redis::cmd("INFO").arg("persistence").query(conn)?;
        let changes = info
            .lines()
            .find_map(|line| line.strip_prefix("rdb_changes_since_last_save:"))
            .context("no count of changes")?;
        Ok(Self {
            changes: changes.trim().parse()?,
            keys,
        })
    }
}
