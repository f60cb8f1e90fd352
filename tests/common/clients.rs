//! What a server knows of its clients.

use redis::Connection;

/// The number that the server gave this connection.
pub fn id(conn: &mut Connection) -> u64 {
    redis::cmd("CLIENT").arg("ID").query(conn).unwrap()
}

/// How many connections the server has beside the one that asks.
pub fn count(admin: &mut Connection) -> usize {
    list(admin).lines().count() - 1
}

/// Whether the server has the connection still.
pub fn exists(admin: &mut Connection, id: u64) -> bool {
    list(admin).contains(&format!("id={id} "))
}

/// Lets the server close a connection.
pub fn kill(admin: &mut Connection, id: u64) {
    redis::cmd("CLIENT")
        .arg("KILL")
        .arg("ID")
        .arg(id)
        .exec(admin)
        .unwrap();
}

fn list(admin: &mut Connection) -> String {
    redis::cmd("CLIENT").arg("LIST").query(admin).unwrap()
}
