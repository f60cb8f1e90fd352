//! Locks on more than one server: Sentinel, replicas, Redis Cluster.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test fails by panicking, and says how long it took"
)]

#[path = "../common/mod.rs"]
mod common;

mod clusters;
mod failovers;
mod following;
mod history;
mod logins;
mod long;
mod lost_renewals;
mod lying;
mod lying_nodes;
mod nodes;
mod open_slots;
mod plain_on_nodes;
mod plain_url;
mod probing;
mod replicas;
mod sentinels;
mod silent_nodes;
mod watchdogs;

use std::time::Duration;

use common::{Server, locks::connect};

/// Users that may, and may not, receive notifications. Without them a wait takes longer, and
/// nothing else differs.
const USERS: [(&str, &str); 2] = [("told", "allchannels"), ("untold", "resetchannels")];

/// Creates the [`USERS`] on these servers, and returns this URL for each of them.
fn urls_of_users(servers: &[Server], url: &str) -> [String; 2] {
    USERS.map(|(name, channels)| {
        for server in servers {
            let mut user = redis::cmd("ACL");
            user.arg(&["SETUSER", name, "on", ">x", "~*", "+@all", channels]);
            user.exec(&mut server.connection().unwrap()).unwrap();
        }
        url.replace("://", &format!("://{name}:x@"))
    })
}

/// A lease longer than a failover.
const LEASE: Duration = Duration::from_secs(10);
