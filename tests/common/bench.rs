//! The setup that most tests start with.

use std::time::Duration;

use redis::Connection;

use super::Server;

/// One millisecond, as a factor.
pub const MS: Duration = Duration::from_millis(1);
/// Longer than any test takes: a lease that does not expire, or a wait that only times out if
/// something hangs.
pub const LONG: Duration = Duration::from_secs(20);

/// A private server and a connection to it.
pub fn start() -> (Server, Connection) {
    let server = Server::start().unwrap();
    let conn = server.connection().unwrap();
    (server, conn)
}

/// Has the server execute a command whose words have no blanks, and ignores its reply.
#[track_caller]
pub fn tell(conn: &mut Connection, command: &str) {
    let mut words = command.split(' ');
    let mut cmd = redis::cmd(words.next().unwrap());
    cmd.arg(words.collect::<Vec<_>>()).exec(conn).unwrap();
}
