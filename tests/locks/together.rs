//! Calls of many threads in one write, with something going wrong at each of its places.

use std::{
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use leasehold::{Error, Lease, Locks, Options, Pool, Result};
use redis::{Commands, Connection};

use crate::common::{
    LONG, MS, Proxy, Server,
    child::said_by_a_child,
    hold::{comes_true, leave_the_watchdog_alone},
    proxy::Point,
    slack::slack,
    wait::{TOO_SLOW, at_once, comes_true_within, tracked_keys, unless_halted},
};

/// Calls wait a quarter of it for each other here: on a busy machine it takes a while until all of one write are there.
const IO_TIMEOUT: Duration = Duration::from_millis(2_400);
/// A call waits for so long until it goes alone, and a try that may not wait only as long as for a connection.
const CALL: Duration = Duration::from_millis(600);
const TRY: Duration = Duration::from_millis(200);
/// One time-out, and what a busy machine takes besides; it is less than one and a half.
const ONE_TIMEOUT: Duration = Duration::from_millis(3_400);
/// So late are answers that come in time; the third of three such does not.
const LATE: Duration = Duration::from_secs(1);
/// Calls of one write.
const PLACES: usize = 3;

type Call<'a> = Box<dyn FnOnce() -> Result<Option<Lease>> + Send + 'a>;

struct Bench {
    proxy: Proxy,
    locks: Locks,
    conn: Connection,
    _server: Server,
}

fn bench(options: Options) -> Bench {
    let server = Server::start().unwrap();
    let proxy = Proxy::in_front_of(&server).unwrap();
    let client = redis::Client::open(proxy.url()).unwrap();
    let pool = Pool::builder().io_timeout(IO_TIMEOUT).build(&client);
    let locks = Locks::new(&pool.unwrap()).unwrap().with(options);
    locks.go_together_always();
    // The server knows the scripts.
    let warm = locks.lock("warm").acquire(LONG).unwrap();
    warm.renew(LONG).unwrap();
    warm.release().unwrap();
    assert!(!locks.lock("warm").inspect().unwrap().is_held());
    Bench {
        proxy,
        locks,
        conn: server.connection().unwrap(),
        _server: server,
    }
}

/// What a call has come to, how long it took since it was sent with the others, and whose it was.
struct Came {
    done: Result<Option<Lease>>,
    took: Duration,
}

impl Bench {
    /// While one call is on its way, these come in turn, and go in one write after it. `breaks` says what will happen to it.
    /// `stays`: no call goes alone sooner.
    fn in_one_write<'a>(
        &'a self,
        calls: Vec<Call<'a>>,
        stays: Duration,
        breaks: impl FnOnce(&Proxy),
    ) -> Vec<Came> {
        let one_write = vec!["EVALSHA"; calls.len()];
        self.proxy.take_bursts();
        let came = self.gathered(calls, stays, || breaks(&self.proxy));
        // One may have left when all had been there.
        let mut calls = self.proxy.take_bursts();
        calls.retain(|burst| burst[0] == "EVALSHA");
        assert!(calls.len() > 1 && calls[1] == one_write, "{TOO_SLOW}");
        came
    }

    /// While one call is on its way, these come in turn, and are sent after `meanwhile`. `stays`: no call goes alone sooner.
    fn gathered<'a>(
        &'a self,
        calls: Vec<Call<'a>>,
        stays: Duration,
        meanwhile: impl FnOnce(),
    ) -> Vec<Came> {
        thread::scope(|scope| {
            let (go_on, may_go_on) = mpsc::channel();
            let (arrived, has_arrived) = mpsc::channel();
            let until_all_are_there = move || {
                arrived.send(()).unwrap();
                let _ = may_go_on.recv();
            };
            self.proxy.at("EVALSHA").run(until_all_are_there);
            let begun = Instant::now();
            let first = scope.spawn(|| self.locks.lock("first").inspect());
            has_arrived.recv().unwrap();
            let asking: Vec<_> = (1..)
                .zip(calls)
                .map(|(place, call)| {
                    let asking = scope.spawn(move || (call(), Instant::now()));
                    let is_there = || {
                        let has_left = asking.is_finished();
                        let too_early = has_left && begun.elapsed() < stays;
                        assert!(!too_early, "a call has left before its time");
                        assert!(!has_left, "{TOO_SLOW}");
                        self.locks.unsent_calls() == place
                    };
                    assert!(comes_true_within(IO_TIMEOUT, is_there), "{TOO_SLOW}");
                    asking
                })
                .collect();
            meanwhile();
            let sent = Instant::now();
            go_on.send(()).unwrap();
            assert!(!first.join().unwrap().unwrap().is_held());
            let came = asking.into_iter().map(|asked| {
                let (done, at) = asked.join().unwrap();
                Came {
                    done,
                    took: at.saturating_duration_since(sent),
                }
            });
            came.collect()
        })
    }

    /// Acquires of three locks, with a fault at one of them.
    fn acquire_all(&self, breaks: impl FnOnce(&Proxy)) -> Vec<Came> {
        self.in_one_write(self.acquires(), TRY, breaks)
    }

    fn acquires(&self) -> Vec<Call<'_>> {
        let acquire = |place: usize| {
            let lock = self.locks.lock(&place.to_string());
            Box::new(move || lock.try_acquire()) as Call<'_>
        };
        (0..PLACES).map(acquire).collect()
    }

    /// Waits until the watchdog has looked at so many leases: then the server tells of two keys of each, and of no other once the
    /// one that is left of the beginning has been deleted.
    fn wait_for_the_watchdogs_look(&mut self, leases: usize) {
        let () = self.conn.del("{lock:warm}:lease").unwrap();
        let looked_at = 2 * leases;
        assert!(comes_true(
            || tracked_keys(&mut self.conn).unwrap() == looked_at
        ));
    }

    /// The proxy counts and disturbs nothing of what the watchdog sends.
    fn leave_the_watchdog_alone(&mut self) {
        leave_the_watchdog_alone(&self.proxy, &self.locks, &mut self.conn);
    }

    fn is_free(&mut self) -> bool {
        let held: Vec<String> = self.conn.keys("lock:*").unwrap();
        held.is_empty()
    }
}

fn is_ours(came: &Came) -> bool {
    let held = came.done.as_ref().ok().and_then(Option::as_ref);
    held.is_some_and(Lease::is_held)
}

fn is_unknown(came: &Came) -> bool {
    matches!(&came.done, Err(Error::Unknown { .. }))
}

/// At the call for this lock. Others may come between: the first look at a lease, or the watchdog's new connection.
fn at(proxy: &Proxy, place: usize) -> Point<'_> {
    proxy.at("EVALSHA").about(&format!("lock:{place}"))
}

fn at_each_place(run: impl Fn(usize) + Sync) {
    at_once(0..PLACES, run);
}

#[test]
fn all_that_gathers_goes_in_one_round_trip() {
    unless_halted(|| {
        // On a busy machine another connection of the pool may be opened among them.
        let undisturbed = (0..8).any(|_| {
            let mut bench = bench(crate::options());
            bench.leave_the_watchdog_alone();
            let (came, traffic) = bench.proxy.traffic_of(|| bench.acquire_all(|_| ()));
            assert!(came.iter().all(is_ours));
            traffic.commands == ["EVALSHA"; 1 + PLACES] && traffic.round_trips == 2
        });
        assert!(undisturbed);
    });
}

#[test]
fn what_was_cut_off_is_sent_again_and_ours_or_given_back() {
    for is_executed in [false, true] {
        at_each_place(|place| {
            let mut bench = bench(crate::options());
            let came = bench.acquire_all(|proxy| {
                let point = at(proxy, place);
                if is_executed {
                    point.cut_after();
                } else {
                    point.cut_before();
                }
            });
            assert!(bench.proxy.happened());
            assert!(came.iter().all(is_ours), "{place}");
            drop(came);
            assert!(comes_true(|| bench.is_free()));
        });
    }
}

#[test]
fn what_gets_no_answer_is_unknown_in_time_and_given_back_and_the_others_are_ours() {
    at_each_place(|place| {
        let mut bench = bench(crate::options());
        let came = bench.acquire_all(|proxy| at(proxy, place).swallow());
        assert!(bench.proxy.happened());
        only_the_first_are_ours(&came, place);
        drop(came);
        assert!(comes_true(|| bench.is_free()));
        assert!(bench.locks.lock("next").try_acquire().unwrap().is_some());
    });
}

#[test]
fn an_answer_that_cannot_be_read_closes_the_connection_and_hides_those_behind_it_alone() {
    at_each_place(|place| {
        let mut bench = bench(crate::options());
        let came = bench.acquire_all(|proxy| at(proxy, place).reply("?no answer\r\n"));
        assert!(bench.proxy.happened());
        for (number, came) in came.iter().enumerate() {
            let is_right = if number < place { is_ours } else { is_unknown };
            assert!(is_right(came), "{number}: {:?}", came.done);
        }
        drop(came);
        assert!(comes_true(|| bench.is_free()));
        assert!(bench.locks.lock("next").try_acquire().unwrap().is_some());
    });
}

#[test]
fn an_answer_that_makes_no_sense_or_refuses_is_for_its_owner_alone() {
    at_each_place(|place| {
        for (answer, is_unknown) in [
            (":7\r\n", true),
            ("-NOPERM no\r\n", false),
            (
                "-READONLY You can't write against a read only replica.\r\n",
                false,
            ),
            ("-NOSCRIPT No matching script.\r\n", false),
        ] {
            let mut bench = bench(crate::options());
            let came = bench.acquire_all(|proxy| at(proxy, place).reply(answer));
            assert!(bench.proxy.happened());
            for (number, came) in came.iter().enumerate() {
                let told = &came.done;
                if number != place || answer.contains("NOSCRIPT") {
                    assert!(is_ours(came), "{answer} {number}: {told:?}");
                } else if is_unknown {
                    assert!(matches!(told, Err(Error::Unknown { .. })), "{told:?}");
                } else {
                    assert!(matches!(told, Err(Error::Redis { .. })), "{told:?}");
                }
            }
            drop(came);
            // It was executed, whatever was said.
            let left = format!("lock:{place}");
            let () = bench.conn.del(left).unwrap();
            assert!(comes_true(|| bench.is_free()), "{answer}");
        }
    });
}

/// So many have their lock; the others got no answer, and none waited for as long as one and a half answers may take.
fn only_the_first_are_ours(came: &[Came], ours: usize) {
    for (number, came) in came.iter().enumerate() {
        let is_right = if number < ours { is_ours } else { is_unknown };
        assert!(is_right(came), "{number}: {:?}", came.done);
        assert!(came.took < ONE_TIMEOUT, "{:?}", came.took);
    }
}

#[test]
fn a_late_answer_makes_no_lease_longer_and_one_after_the_time_out_is_unknown() {
    at_each_place(|place| {
        let mut bench = bench(crate::options().lease(5_000 * MS).renewal(false));
        let came = bench.acquire_all(|proxy| at(proxy, place).delay(LATE));
        assert!(bench.proxy.happened());
        for (number, came) in came.iter().enumerate() {
            assert!(is_ours(came), "{number}: {:?}", came.done);
            // The first of them leads, and reads the answers of all.
            let is_late = number == 0 || number >= place;
            assert_eq!(came.took >= LATE, is_late, "{:?}", came.took);
            let left: u64 = bench.conn.pttl(format!("lock:{number}")).unwrap();
            let lease = came.done.as_ref().unwrap().as_ref().unwrap();
            assert!(lease.remaining() <= Duration::from_millis(left + 1));
        }
        drop(came);

        let late = IO_TIMEOUT + 500 * MS;
        let came = bench.acquire_all(|proxy| at(proxy, place).delay(late));
        only_the_first_are_ours(&came, place);
        drop(came);
        assert!(comes_true(|| bench.is_free()));
    });
}

/// A slow answer to each call is not waited for as long as for all together.
#[test]
fn all_answers_together_are_waited_for_no_longer_than_one() {
    unless_halted(|| {
        let mut bench = bench(crate::options());
        let came = bench.acquire_all(|proxy| {
            for place in 0..PLACES {
                at(proxy, place).delay(LATE);
            }
        });
        // After one second, two and, if it were waited for, three.
        only_the_first_are_ours(&came, 2);
        drop(came);
        assert!(comes_true(|| bench.is_free()));
    });
}

#[test]
fn releases_and_renewals_without_an_answer_are_unknown_and_done_in_the_end() {
    for renews in [false, true] {
        at_each_place(|place| {
            let mut bench = bench(crate::options());
            let held: Vec<_> = (0..PLACES)
                .map(|number| bench.locks.lock(&number.to_string()).acquire(LONG).unwrap())
                .collect();
            bench.wait_for_the_watchdogs_look(PLACES);
            let calls = held.into_iter().map(|lease| {
                let release = move || {
                    if renews {
                        lease.renew(LONG)?;
                        return Ok(Some(lease));
                    }
                    lease.release().map(|()| None)
                };
                Box::new(release) as Call<'_>
            });
            let swallow = |proxy: &Proxy| at(proxy, place).swallow();
            let came = bench.in_one_write(calls.collect(), CALL, swallow);
            assert!(bench.proxy.happened());
            for (number, came) in came.iter().enumerate() {
                assert_eq!(is_unknown(came), number >= place, "{:?}", came.done);
                assert!(came.took < ONE_TIMEOUT, "{:?}", came.took);
            }
            drop(came);
            assert!(comes_true(|| bench.is_free()));
        });
    }
}

/// Others of the same write go on waiting.
#[test]
fn a_drop_takes_no_longer_than_it_may_at_each_place() {
    at_each_place(|place| {
        let mut bench = bench(crate::options());
        let short = crate::options().drop_timeout(700 * MS);
        let lease = bench
            .locks
            .lock("dropped")
            .with(short)
            .acquire(LONG)
            .unwrap();
        bench.wait_for_the_watchdogs_look(1);
        let acquire = |number: usize| {
            let lock = bench.locks.lock(&number.to_string());
            Box::new(move || lock.try_acquire()) as Call<'_>
        };
        let mut calls: Vec<_> = (1..PLACES).map(acquire).collect();
        calls.insert(
            place,
            Box::new(move || {
                drop(lease);
                Ok(None)
            }),
        );
        let came = bench.in_one_write(calls, TRY, |proxy| {
            proxy.at("EVALSHA").delay(1_400 * MS);
        });
        for (number, came) in came.iter().enumerate() {
            if number == place {
                assert!(came.took < 700 * MS + slack(), "{:?}", came.took);
            } else {
                assert!(is_ours(came) && came.took >= 1_400 * MS, "{:?}", came.done);
            }
        }
        drop(came);
        assert!(comes_true(|| bench.is_free()));
    });
}

/// It leaves the line, and goes by a connection of its own.
#[test]
fn who_comes_behind_a_call_that_gets_no_answer_is_not_held_up() {
    unless_halted(|| {
        let bench = bench(crate::options());
        bench.proxy.at("EVALSHA").about("lock:a").swallow();
        thread::scope(|scope| {
            let silent = scope.spawn(|| bench.locks.lock("a").try_acquire());
            assert!(bench.proxy.happened());
            let asked = Instant::now();
            let acquired = bench.locks.lock("b").try_acquire();
            let took = asked.elapsed();
            assert!(acquired.unwrap().is_some());
            assert!(took < IO_TIMEOUT / 2 + slack(), "{took:?}");
            let silent = silent.join().unwrap();
            assert!(matches!(silent, Err(Error::Unknown { .. })), "{silent:?}");
        });
    });
}

#[test]
fn the_child_of_a_fork_is_refused_although_others_wait_to_be_sent() {
    unless_halted(|| {
        let bench = bench(crate::options());
        let came = bench.gathered(bench.acquires(), TRY, || {
            let said = said_by_a_child(|| {
                let refused = bench.locks.lock("child").try_acquire();
                format!("{}", matches!(refused, Err(Error::Forked)))
            });
            assert_eq!(said.as_deref(), Some("true"));
        });
        assert!(came.iter().all(is_ours));
    });
}
