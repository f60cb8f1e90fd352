//! What most tests begin with.

use std::time::Duration;

use redis::Connection;

use super::Server;

/// A millisecond, to be multiplied.
pub const MS: Duration = Duration::from_millis(1);
/// Longer than any test takes: a lease that does not end in it, and a wait that ends only where something hangs.
pub const LONG: Duration = Duration::from_secs(20);

/// A server of the test's own, and a connection to it.
pub fn start() -> (Server, Connection) {
    let server = Server::start().unwrap();
    let conn = server.connection().unwrap();
    (server, conn)
}
