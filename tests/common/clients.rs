//! The server's view of its clients.

use redis::Connection;

/// The server's id of this connection.
pub fn id(conn: &mut Connection) -> u64 {
    redis::cmd("CLIENT").arg("ID").query(conn).unwrap()
}

/// Number of connections to the server, without this one.
pub fn count(admin: &mut Connection) -> usize {
    list(admin).lines().count() - 1
}

/// The client ports of connections with tracking: the watchdog's and those of waiting threads.
pub fn told_of_changes(admin: &mut Connection) -> Vec<u16> {
    with_flag(admin, 't')
}

/// The client ports of connections that have subscribed: the listener's.
pub fn subscribers(admin: &mut Connection) -> Vec<u16> {
    with_flag(admin, 'P')
}

fn with_flag(admin: &mut Connection, flag: char) -> Vec<u16> {
    let list = list(admin);
    let has_it = |line: &&str| field(line, "flags=").is_some_and(|flags| flags.contains(flag));
    let port = |line| field(line, "addr=")?.rsplit_once(':')?.1.parse().ok();
    list.lines().filter(has_it).filter_map(port).collect()
}

/// True if a command is held back by `CLIENT PAUSE`.
pub fn are_held_back(admin: &mut Connection) -> bool {
    let has_b = |line: &str| field(line, "flags=").is_some_and(|flags| flags.contains('b'));
    list(admin).lines().any(has_b)
}

/// True if the connection is still open on the server.
pub fn exists(admin: &mut Connection, id: u64) -> bool {
    list(admin).contains(&format!("id={id} "))
}

/// Has the server close a connection.
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

fn field<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    line.split(' ').find_map(|field| field.strip_prefix(name))
}
