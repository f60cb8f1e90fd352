//! A relay in front of a server, through which a test acts between the round trips of the function that it tests.

use std::{
    io::{self, Read, Write},
    net::{Ipv4Addr, Shutdown, TcpListener, TcpStream},
    thread,
    time::Duration,
};

use super::Server;

/// A connection whose every request is shown to `before`, as text, before the server gets it.
///
/// redis-rs writes a pipeline at once and then waits, so one call is one round trip.
pub fn connect_through(
    server: &Server,
    before: impl FnMut(&str) + Send + 'static,
) -> anyhow::Result<redis::Connection> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let port = listener.local_addr()?.port();
    let upstream = TcpStream::connect((Ipv4Addr::LOCALHOST, server.port()))?;
    thread::spawn(move || relay(&listener, upstream, before));

    let conn = redis::Client::open(format!("redis://127.0.0.1:{port}/"))?.get_connection()?;
    // A `before` that panics ends the relay: the test fails then, and does not hang.
    conn.set_read_timeout(Some(Duration::from_secs(10)))?;
    Ok(conn)
}

fn relay(
    listener: &TcpListener,
    mut upstream: TcpStream,
    mut before: impl FnMut(&str),
) -> io::Result<()> {
    let (mut client, _) = listener.accept()?;
    client.set_nodelay(true)?;
    upstream.set_nodelay(true)?;
    let (mut replies, mut back) = (upstream.try_clone()?, client.try_clone()?);
    thread::spawn(move || io::copy(&mut replies, &mut back));

    let mut buffer = vec![0; 64 * 1024];
    loop {
        let length = client.read(&mut buffer)?;
        if length == 0 {
            return upstream.shutdown(Shutdown::Both);
        }
        before(&String::from_utf8_lossy(&buffer[..length]));
        upstream.write_all(&buffer[..length])?;
    }
}
