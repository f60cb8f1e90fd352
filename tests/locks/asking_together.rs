//! Calls of many threads in one write, and the attempts of the heads of many queues.

use std::{sync::mpsc, thread, time::Duration};

use leasehold::{Error, Lease, Locks, Pool, Result};
use redis::{Commands, Connection};

use crate::common::{
    LONG, MS, Proxy, Server,
    hold::{comes_true, leave_the_watchdog_alone},
    wait::{TOO_SLOW, comes_true_within, tracked_keys, unless_halted},
};

const IO_TIMEOUT: Duration = Duration::from_millis(2_400);
/// Four calls go alone, and three writes are in progress: further calls stay in the outbox.
const UNDER_WAY: usize = 7;
/// Calls per write.
const TOGETHER: usize = 3;

fn locks_by(proxy: &Proxy) -> Locks {
    crate::connect_with(&proxy.url(), Pool::builder().io_timeout(IO_TIMEOUT))
}

/// The results of acquires of `0`, `1` and `2`; `None` if they did not share a write because the
/// machine was too busy.
fn in_one_write(
    server: &Server,
    proxy: &Proxy,
    breaks: impl Fn(&Proxy),
) -> Option<Vec<Result<Option<Lease>>>> {
    let locks = locks_by(proxy);
    let warm = locks.lock("warm").acquire(LONG).unwrap();
    assert!(locks.lock("warm").inspect().unwrap().is_held());
    warm.release().unwrap();
    leave_the_watchdog_alone(proxy, &locks, &mut server.connection().unwrap());
    thread::scope(|scope| {
        let mut gates = Vec::new();
        for number in 0..UNDER_WAY {
            let (gate, opened) = mpsc::channel::<()>();
            let (arrived, has_arrived) = mpsc::channel();
            let name = format!("held{number}");
            let until_opened = move || {
                arrived.send(()).unwrap();
                let _ = opened.recv_timeout(IO_TIMEOUT / 2);
            };
            proxy
                .at("EVALSHA")
                .about(&format!("lock:{name}"))
                .run(until_opened);
            gates.push(gate);
            let lock = locks.lock(&name);
            scope.spawn(move || lock.inspect().unwrap());
            has_arrived.recv_timeout(LONG).unwrap();
        }
        breaks(proxy);
        proxy.take_bursts();
        let asking: Vec<_> = (0..TOGETHER)
            .map(|number| {
                let lock = locks.lock(&number.to_string());
                scope.spawn(move || lock.try_acquire())
            })
            .collect();
        // By now all are in the outbox; otherwise the caller tries again.
        thread::sleep(30 * MS);
        // One of the shared writes.
        drop(gates.pop());
        let came = asking.into_iter().map(|it| it.join().unwrap()).collect();
        drop(gates);
        let went_together = |burst: &Vec<String>| burst[..] == ["EVALSHA"; TOGETHER];
        proxy
            .take_bursts()
            .iter()
            .any(went_together)
            .then_some(came)
    })
}

fn broken(breaks: impl Fn(&Proxy), check: impl Fn(&mut Connection, Vec<Result<Option<Lease>>>)) {
    unless_halted(|| {
        let has_been = (0..8).any(|_| {
            let server = Server::start().unwrap();
            let proxy = Proxy::in_front_of(&server).unwrap();
            let Some(came) = in_one_write(&server, &proxy, &breaks) else {
                return false;
            };
            check(&mut server.connection().unwrap(), came);
            true
        });
        assert!(has_been, "{TOO_SLOW}");
    });
}

fn is_free(conn: &mut Connection) -> bool {
    let held: Vec<String> = conn.keys("lock:*").unwrap();
    held.is_empty()
}

fn is_ours(came: &Result<Option<Lease>>) -> bool {
    matches!(came, Ok(Some(lease)) if lease.is_held())
}

#[test]
fn calls_of_a_write_that_was_cut_are_sent_again() {
    for is_executed in [false, true] {
        let breaks = |proxy: &Proxy| {
            let point = proxy.at("EVALSHA").about("lock:1");
            if is_executed {
                point.cut_after();
            } else {
                point.cut_before();
            }
        };
        broken(breaks, |conn, came| {
            assert!(came.iter().all(is_ours), "{came:?}");
            drop(came);
            assert!(comes_true(|| is_free(conn)));
        });
    }
}

#[test]
fn unanswered_calls_of_one_write_are_unknown_and_released() {
    let swallow = |proxy: &Proxy| proxy.at("EVALSHA").about("lock:1").swallow();
    broken(swallow, |conn, came| {
        let is_unknown = |came| matches!(came, &Err(Error::Unknown { .. }));
        assert!(is_unknown(&came[1]), "{came:?}");
        assert!(
            came.iter().all(|it| is_ours(it) || is_unknown(it)),
            "{came:?}"
        );
        drop(came);
        assert!(comes_true(|| is_free(conn)));
    });
}

/// One attempt is on its way while all other heads ask.
#[test]
fn the_heads_of_a_hundred_queues_ask_in_few_writes() {
    const HEADS: usize = 100;
    const WRITES: usize = HEADS / 2;
    unless_halted(|| {
        let server = Server::start().unwrap();
        let proxy = Proxy::in_front_of(&server).unwrap();
        let mut conn = server.connection().unwrap();
        let locks = locks_by(&proxy);
        leave_the_watchdog_alone(&proxy, &locks, &mut conn);
        let name = |number: usize| format!("lock:{number}");
        for number in 0..=HEADS {
            let () = conn.set(name(number), "another").unwrap();
        }
        thread::scope(|scope| {
            let waiting: Vec<_> = (0..=HEADS)
                .map(|number| {
                    let lock = locks.lock(&number.to_string());
                    scope.spawn(move || lock.acquire(LONG))
                })
                .collect();
            let all_wait = || tracked_keys(&mut conn).unwrap() > HEADS;
            assert!(comes_true_within(LONG, all_wait), "{TOO_SLOW}");
            let (gate, opened) = mpsc::channel::<()>();
            let (arrived, has_arrived) = mpsc::channel();
            let until_opened = move || {
                arrived.send(()).unwrap();
                let _ = opened.recv_timeout(IO_TIMEOUT);
            };
            proxy.at("EVALSHA").about("lock:0").run(until_opened);
            let () = conn.del(name(0)).unwrap();
            has_arrived.recv_timeout(LONG).unwrap();
            proxy.take_bursts();
            let freed: Vec<String> = (1..=HEADS).map(name).collect();
            let () = conn.del(freed).unwrap();
            // A head that is not awake by then asks in a write of its own.
            thread::sleep(500 * MS);
            drop(gate);
            let leases: Vec<_> = waiting.into_iter().map(|it| it.join().unwrap()).collect();
            let bursts = proxy.take_bursts();
            assert!(
                leases
                    .iter()
                    .all(|it| it.as_ref().is_ok_and(Lease::is_held))
            );
            let asks = |burst: &&Vec<String>| burst.iter().any(|name| name == "EVALSHA");
            let writes = bursts.iter().filter(asks).count();
            assert!((1..=WRITES).contains(&writes), "{writes}");
        });
    });
}
