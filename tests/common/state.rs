//! Everything that a server holds, to see that nothing has changed.

use std::collections::BTreeMap;

use anyhow::Context;
use redis::{Commands, Connection};

/// Two of them are equal if nothing was written in between, not even an end or a value that was there already.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    /// What the server counts: every change, also one that was undone.
    changes: u64,
    keys: BTreeMap<String, Vec<u8>>,
}

impl State {
    /// What it holds now.
    pub fn of(conn: &mut Connection) -> anyhow::Result<Self> {
        let mut keys = BTreeMap::new();
        for key in conn.keys::<_, Vec<String>>("*")? {
            let kind: String = redis::cmd("TYPE").arg(&key).query(conn)?;
            let content = if kind == "hash" {
                // A large one is dumped in an order that changes with each look.
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
