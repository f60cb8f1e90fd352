//! Tests of the wait for a connection that r2d2 opens.

use std::{
    io::{Read, Write},
    net::TcpListener,
    sync::atomic::AtomicUsize,
};

use super::*;

const GREETING: &[u8] = b"$19\r\nredis_version:7.0.0\r\n";

/// A pool whose time-out is much longer than a thread waits for a processor.
fn pool(url: &str) -> Pool {
    let patience = Duration::from_secs(20);
    let settings = Pool::builder().max_size(5);
    let settings = settings.connect_timeout(patience).get_timeout(patience);
    settings.connect(url).unwrap()
}

/// A server that answers slowly, so that a waiting call polls only occasionally. Counts the
/// connections.
fn a_server_that_greets_slowly() -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("redis://{}/", listener.local_addr().unwrap());
    let count = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&count);
    thread::spawn(move || {
        for conn in listener.incoming().map_while(Result::ok) {
            counted.fetch_add(1, Ordering::SeqCst);
            thread::spawn(move || {
                thread::sleep(20 * POLL);
                let is_asked = || (&conn).read(&mut [0; 1_024]).is_ok_and(|read| read > 0);
                while is_asked() && (&conn).write_all(GREETING).is_ok() {}
            });
        }
    });
    (url, count)
}

#[test]
fn a_waiter_whose_connection_is_taken_asks_for_another_at_once() {
    let (url, _) = a_server_that_greets_slowly();
    let is_taken = || {
        let pool = pool(&url);
        let mut taken = None;
        // The waiting thread keeps its connection, so that no other call takes it.
        let (waited, _conn) = thread::scope(|scope| {
            let waits = scope.spawn(|| {
                let asked = time::now();
                pool.get().map(|conn| (asked.elapsed(), conn))
            });
            while taken.is_none() && !waits.is_finished() {
                taken = pool.inner.connections.try_get();
            }
            if let Some(taken) = &mut taken {
                let deadline = Deadline::after(ASK_AGAIN);
                pool.inner.state.prove(taken, deadline).unwrap();
            }
            waits.join().unwrap().unwrap()
        });
        taken.is_some() && waited < ASK_AGAIN
    };
    // The waiting call sometimes takes the connection before this thread does.
    assert!((0..100).any(|_| is_taken()));
}

#[test]
fn a_waiter_does_not_keep_asking_for_more_connections() {
    let (url, count) = a_server_that_greets_slowly();
    drop(pool(&url).get().unwrap());
    assert_eq!(count.load(Ordering::SeqCst), 1);
}
