//! A command that was sent only in part, because the server was not reading.

use std::{
    io::{Read, Write},
    net::{Ipv4Addr, TcpListener, TcpStream},
    sync::mpsc,
    thread,
    time::Duration,
};

use leasehold::{acquire_lock_with_timeout, commit_while_held, redis};
use redis::Commands;

use crate::common::Server;

const MS: Duration = Duration::from_millis(1);
const LONG: Duration = Duration::from_secs(20);
/// More than a small transaction, less than a large one.
const BYTES: usize = 1_000;

/// A proxy that stops forwarding after this many bytes, until told to continue. Also returns its
/// address.
fn stalling(server: &Server) -> (String, mpsc::Sender<()>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let mut server = TcpStream::connect((Ipv4Addr::LOCALHOST, server.port())).unwrap();
    let (go_on, is_to_go_on) = mpsc::channel();
    thread::spawn(move || {
        let (mut client, _) = listener.accept().unwrap();
        let (mut answers, mut back) = (server.try_clone().unwrap(), client.try_clone().unwrap());
        thread::spawn(move || std::io::copy(&mut answers, &mut back));
        let (mut buffer, mut passed) = ([0; 256], 0);
        while let Ok(n @ 1..) = client.read(&mut buffer) {
            server.write_all(&buffer[..n]).unwrap();
            passed += n;
            if passed > BYTES && passed - n <= BYTES {
                let _ = is_to_go_on.recv();
            }
        }
    });
    (format!("redis://127.0.0.1:{port}/"), go_on)
}

/// The server would read the next command as the rest of the first, and its answer would be taken
/// for the next one's.
#[test]
fn the_answer_to_half_a_transaction_is_not_taken_for_a_lock() {
    let server = Server::start().unwrap();
    let (url, go_on) = stalling(&server);
    let client = redis::Client::open(url).unwrap();
    let mut conn = client.get_connection().unwrap();
    conn.set_read_timeout(Some(LONG)).unwrap();
    conn.set_write_timeout(Some(300 * MS)).unwrap();
    let acquired = acquire_lock_with_timeout(&mut conn, "a", MS, LONG);
    let token = acquired.unwrap().unwrap();
    let large = "x".repeat(64 << 20);
    let written = commit_while_held::<()>(&mut conn, "a", &token, |pipe| {
        pipe.set("small", 1).ignore().set("large", &large).ignore();
    });
    assert!(written.is_err());
    go_on.send(()).unwrap();
    let next = acquire_lock_with_timeout(&mut conn, "b", MS, LONG);
    let mut conn = server.connection().unwrap();
    let is_there: bool = conn.exists("lock:b").unwrap();
    assert!(
        next.is_err() && !is_there,
        "{next:?}, and the lock exists: {is_there}"
    );
    assert!(!conn.exists::<_, bool>("small").unwrap());
}
