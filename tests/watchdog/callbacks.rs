//! Callbacks that affect the watchdog, and the effects of a drop.

use std::{
    fs,
    sync::{Arc, mpsc},
    thread,
    time::{Duration, Instant},
};

use crate::common::{
    MS, SLACK, Server,
    hold::{PATIENCE, comes_true, take},
    wait::at_once,
};
use leasehold::{Keep, LostReason, Pool, Renewal, RenewalState, Watchdog, redis::Connection};
use parking_lot::Mutex;
use redis::Commands;

/// Two thirds of it are longer than any pause of a busy machine that a test has to tolerate.
const LEASE: Duration = Duration::from_millis(1_500);

struct Bench {
    watchdog: Watchdog,
    conn: Connection,
    _server: Server,
}

fn bench() -> Bench {
    let server = Server::start().unwrap();
    Bench {
        watchdog: Watchdog::new(&Pool::connect(&server.url()).unwrap()).unwrap(),
        conn: server.connection().unwrap(),
        _server: server,
    }
}

impl Bench {
    fn keep(&mut self, name: &str) -> Renewal {
        let hold = take(&mut self.conn, name, LEASE).unwrap();
        self.watchdog.keep(&hold, LEASE).unwrap()
    }

    fn lose(&mut self, renewal: &Renewal, name: &str) {
        let () = self.conn.del(format!("lock:{name}")).unwrap();
        assert!(renewal.lost().wait_for(PATIENCE));
    }
}

/// Runs concurrently: each mostly waits.
#[test]
fn callbacks_do_not_delay_renewals() {
    let cases: [fn(); 3] = [
        a_callback_that_takes_long_delays_no_renewal,
        a_callback_may_use_the_watchdog_and_drop_it,
        those_it_kept_run_out_when_it_is_dropped,
    ];
    at_once(cases, |case| case());
}

fn a_callback_that_takes_long_delays_no_renewal() {
    let mut bench = bench();
    let (slow, other) = (bench.keep("slow"), bench.keep("other"));
    let (called, calls) = mpsc::channel();
    let (let_go, wait) = mpsc::channel::<()>();
    slow.lost()
        .notify(move |_| {
            called.send(()).unwrap();
            let _ = wait.recv_timeout(PATIENCE);
        })
        .unwrap();
    bench.lose(&slow, "slow");
    calls.recv_timeout(PATIENCE).unwrap();
    thread::sleep(LEASE + 100 * MS);
    assert_eq!(other.state(), RenewalState::Held);
    let_go.send(()).unwrap();
}

fn a_callback_may_use_the_watchdog_and_drop_it() {
    let mut bench = bench();
    let (lost, other) = (bench.keep("lost"), bench.keep("other"));
    let hold = take(&mut bench.conn, "next", LEASE).unwrap();
    let (called, calls) = mpsc::channel();
    let signal = lost.lost();
    let watchdog = Arc::new(Mutex::new(Some(bench.watchdog)));
    let shared = Arc::clone(&watchdog);
    signal
        .notify(move |_| {
            assert_eq!(lost.stop(), RenewalState::Lost(LostReason::TakenAway));
            let watchdog = shared.lock().take().unwrap();
            let renewal = watchdog.keep(&hold, LEASE).unwrap();
            assert_eq!(other.stop(), RenewalState::Held);
            let asked = Instant::now();
            drop(watchdog);
            called.send((asked.elapsed(), renewal.state())).unwrap();
        })
        .unwrap();
    let () = bench.conn.del("lock:lost").unwrap();
    let (took, state) = calls.recv_timeout(PATIENCE).unwrap();
    assert!(took < 750 * MS + SLACK, "dropping took {took:?}");
    assert_eq!(state, RenewalState::Unknown);
}

/// A thread that sees the loss first and stops the renewal does not take the event from the
/// callbacks.
#[test]
fn a_loss_is_reported_even_if_the_renewal_is_stopped_next() {
    let mut bench = bench();
    let (called, calls) = mpsc::channel();
    for turn in 0..50 {
        let hold = take(&mut bench.conn, &turn.to_string(), LEASE).unwrap();
        let called = called.clone();
        let keep = Keep::new(LEASE)
            .max_hold(5 * MS)
            .held_until(Instant::now() + LEASE);
        let Ok(renewal) = bench.watchdog.keep_with(&hold, keep) else {
            continue; // the machine was too slow
        };
        renewal
            .lost()
            .notify(move |reason| called.send(reason).unwrap())
            .unwrap();
        while renewal.is_held() {}
        renewal.stop();
        assert_eq!(calls.recv_timeout(PATIENCE), Ok(LostReason::MaxHold));
    }
}

#[test]
fn a_callback_is_dropped_with_its_renewal() {
    let mut bench = bench();
    let (first, second) = (bench.keep("first"), bench.keep("second"));
    let signal = second.lost();
    // Stopping the first drops the second, which stops in turn.
    first.lost().notify(move |_| drop(second)).unwrap();
    let outlives = first.lost();
    first.stop();
    assert!(!signal.wait_for(PATIENCE));
    let third = bench.keep("third");
    outlives.notify(move |_| drop(third)).unwrap();
    assert_eq!(
        format!("{:?}", bench.watchdog),
        "Watchdog { leases: 0, .. }"
    );
}

fn those_it_kept_run_out_when_it_is_dropped() {
    let mut bench = bench();
    let (called, calls) = mpsc::channel();
    let hold = take(&mut bench.conn, "a", LEASE).unwrap();
    let renewal = bench.watchdog.keep(&hold, LEASE).unwrap();
    renewal
        .lost()
        .notify({
            let called = called.clone();
            move |reason| called.send(reason).unwrap()
        })
        .unwrap();
    let end = Instant::now() + LEASE;
    drop(bench.watchdog);
    assert_eq!(
        calls.try_recv(),
        Ok(LostReason::Unwatched),
        "called before the drop returned"
    );
    assert_eq!(renewal.state(), RenewalState::Unknown);
    renewal
        .lost()
        .notify(move |reason| called.send(reason).unwrap())
        .unwrap();
    assert_eq!(calls.recv(), Ok(LostReason::Unwatched));

    assert!(renewal.lost().wait_for(PATIENCE));
    assert!(Instant::now() < end + SLACK);
    assert_eq!(renewal.state(), RenewalState::Lost(LostReason::Unwatched));
    assert!(comes_true(|| !bench
        .conn
        .exists::<_, bool>("lock:a")
        .unwrap()));
    assert_eq!(renewal.stop(), RenewalState::Lost(LostReason::Unwatched));
}

/// Threads of this process with this prefix; Linux keeps fifteen bytes of a name.
fn threads(name: &str) -> usize {
    let tasks = fs::read_dir("/proc/self/task").unwrap();
    tasks
        .filter_map(|task| fs::read_to_string(task.unwrap().path().join("comm")).ok())
        .filter(|comm| comm.trim() == &name[..15])
        .count()
}

/// In its own process, because other tests have watchdogs too.
#[test]
fn one_thread_renews_all_and_ends_at_the_drop() {
    let alone = std::env::args().any(|arg| arg == "--exact");
    if !alone {
        let test = "callbacks::one_thread_renews_all_and_ends_at_the_drop";
        let mut run = std::process::Command::new(std::env::current_exe().unwrap());
        let output = run.args(["--exact", test]).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success() && said.contains("1 passed"),
            "{said}"
        );
        return;
    }
    let mut bench = bench();
    let renewals: Vec<_> = (0..50)
        .map(|number| bench.keep(&number.to_string()))
        .collect();
    assert_eq!(
        (threads("leasehold-watchdog"), threads("leasehold-signals")),
        (1, 0)
    );
    for renewal in &renewals {
        renewal.lost().notify(|_| {}).unwrap();
    }
    assert!(comes_true(|| threads("leasehold-signals") == 1));
    assert_eq!(threads("leasehold-watchdog"), 1);
    drop(bench.watchdog);
    assert!(comes_true(|| threads("leasehold-watchdog")
        + threads("leasehold-signals")
        == 0));
    assert!(comes_true(|| {
        let clients: String = redis::cmd("CLIENT")
            .arg("LIST")
            .query(&mut bench.conn)
            .unwrap();
        clients.lines().count() == 1
    }));
}
