//! Tests of an outbox whose server is a function.
#![allow(clippy::panic, reason = "a test fails by panicking")]

use std::{
    io::{Read, Write},
    net::TcpListener,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
};

use redis::{Client, ConnectionAddr, IntoConnectionInfo, RedisConnectionInfo};

use super::{super::waiters::was_not_sent, *};
use crate::error::Error;

const LONG: Duration = Duration::from_secs(20);
const SHORT: Duration = Duration::from_millis(100);

/// The longest wait of a call to be sent, and the moment at which its thread stops waiting.
type Terms = (Duration, Option<Instant>);

fn terms(send_by: Duration) -> Terms {
    (send_by, None)
}

impl Outbox {
    fn post(
        &self,
        packed: &[u8],
        (send_by, until): Terms,
        lead: impl FnOnce(&mut SharedWrite<'_>) -> Result<()>,
    ) -> Result<Option<Reply>> {
        let letter = (packed.to_vec(), None);
        self.ask(letter, Deadline::after(send_by), until, None, lead)
    }

    /// Marks all lanes as in use.
    fn occupy(&self) {
        self.letters.lock().lanes_in_use = self.lanes;
    }

    /// Ends an exchange that occupied all lanes.
    fn set_free(&self, failure: Option<Error>) {
        let own = Letter {
            packed: Vec::new(),
            replicas: None,
            stage: Mutex::new(Stage::Waiting),
            changed: Condvar::new(),
        };
        self.letters.lock().lanes_in_use = 1;
        let write = SharedWrite {
            outbox: self,
            own: Arc::new(own),
            batch: VecDeque::new(),
        };
        let _ = write.run(|_| failure.map_or(Ok(()), Err));
    }
}

/// A server that echoes each call.
#[allow(clippy::unnecessary_wraps, reason = "the signature of a leader")]
fn echo(write: &mut SharedWrite<'_>) -> Result<()> {
    assert!(write.gather(|| true));
    answer_all(write);
    Ok(())
}

fn answer_all(write: &mut SharedWrite<'_>) {
    while let Some(letter) = write.batch.front() {
        let words = Value::BulkString(letter.packed.clone());
        write.tell_next(Ok(words), time::now(), false);
    }
}

fn words(came: Result<Option<Reply>>) -> Option<Vec<u8>> {
    match came.ok()??.answer {
        Ok(Value::BulkString(words)) => Some(words),
        _ => None,
    }
}

fn is_unknown(came: &Result<Option<Reply>>) -> bool {
    matches!(came, Ok(Some(reply)) if reply.answer.is_err())
}

fn not_led(_: &mut SharedWrite<'_>) -> Result<()> {
    panic!("led")
}

/// Waits until the outbox has this many letters.
#[track_caller]
fn until_waiting(outbox: &Outbox, count: usize) {
    let asked = Instant::now();
    loop {
        let waiting = outbox.letters.lock().waiting.len();
        if waiting == count {
            return;
        }
        let is_in_time = asked.elapsed() < Duration::from_secs(30);
        assert!(is_in_time, "{waiting} letters for 30 s, not {count}");
        thread::yield_now();
    }
}

fn is_idle(outbox: &Outbox) -> bool {
    let letters = outbox.letters.lock();
    letters.lanes_in_use == 0 && letters.waiting.is_empty()
}

#[test]
fn each_call_gets_its_own_answer() {
    for lanes in [1, 3] {
        let outbox = Outbox::new(lanes, false);
        thread::scope(|scope| {
            for number in 0..8_u32 {
                let outbox = &outbox;
                scope.spawn(move || {
                    for call in 0..500_u32 {
                        let packed = [number.to_be_bytes(), call.to_be_bytes()].concat();
                        let came = outbox.post(&packed, terms(LONG), echo);
                        assert_eq!(words(came), Some(packed));
                    }
                });
            }
        });
        assert!(is_idle(&outbox));
    }
}

#[test]
fn calls_that_may_not_be_sent_are_not_taken() {
    let outbox = Outbox::new(1, false);
    let told = outbox.post(b"a", terms(LONG), |write| {
        assert!(!write.gather(|| false) && write.batch.is_empty());
        Ok(())
    });
    assert!(matches!(told, Ok(None)) && is_idle(&outbox));
}

#[test]
fn waiting_calls_share_one_write() {
    let outbox = Outbox::new(1, false);
    let writes = AtomicUsize::new(0);
    outbox.occupy();
    thread::scope(|scope| {
        for _ in 0..100 {
            scope.spawn(|| {
                let came = outbox.post(b"a", terms(LONG), |write| {
                    writes.fetch_add(1, Ordering::SeqCst);
                    echo(write)
                });
                assert!(words(came).is_some());
            });
        }
        until_waiting(&outbox, 100);
        outbox.set_free(None);
    });
    assert_eq!(writes.into_inner(), 1);
}

#[test]
fn a_call_that_expires_before_it_is_sent_was_not_sent() {
    let outbox = Outbox::new(1, false);
    outbox.occupy();
    let short = (SHORT, time::now().checked_add(SHORT));
    for terms in [terms(SHORT), short] {
        assert!(matches!(outbox.post(b"a", terms, not_led), Ok(None)));
    }
    outbox.set_free(None);
    assert!(is_idle(&outbox));
}

#[test]
fn a_call_that_may_not_lead_is_returned_to_its_caller_if_no_thread_leads() {
    let outbox = Outbox::new(1, false);
    let short = (LONG, time::now().checked_add(LONG));
    assert!(matches!(outbox.post(b"a", short, not_led), Ok(None)));
    outbox.occupy();
    thread::scope(|scope| {
        let waits = scope.spawn(|| outbox.post(b"a", short, not_led));
        until_waiting(&outbox, 1);
        outbox.set_free(None);
        assert!(matches!(waits.join().unwrap(), Ok(None)));
    });
    assert!(is_idle(&outbox));
}

#[test]
fn a_woken_call_that_may_not_lead_wakes_the_next() {
    let outbox = Outbox::new(1, false);
    outbox.occupy();
    let short = (LONG, time::now().checked_add(LONG));
    thread::scope(|scope| {
        let woken = scope.spawn(|| outbox.post(b"woken", short, not_led));
        until_waiting(&outbox, 1);
        let next = scope.spawn(|| outbox.post(b"next", terms(LONG / 4), echo));
        until_waiting(&outbox, 2);
        outbox.set_free(None);
        assert!(matches!(woken.join().unwrap(), Ok(None)));
        assert_eq!(words(next.join().unwrap()).as_deref(), Some(&b"next"[..]));
    });
    assert!(is_idle(&outbox));
}

/// Without this each head would wait a full time-out for a connection, one after the other.
#[test]
fn heads_behind_one_without_a_connection_get_the_error_at_once() {
    let outbox = Outbox::new(1, true);
    outbox.occupy();
    let tries = AtomicUsize::new(0);
    thread::scope(|scope| {
        let ask = || {
            let no_connection = |_: &mut SharedWrite<'_>| {
                tries.fetch_add(1, Ordering::SeqCst);
                Err(was_not_sent(timed_out()))
            };
            outbox.post(b"a", terms(LONG), no_connection)
        };
        let heads: Vec<_> = (0..5).map(|_| scope.spawn(ask)).collect();
        until_waiting(&outbox, 5);
        outbox.set_free(None);
        for head in heads {
            assert!(matches!(head.join().unwrap(), Err(Error::Pool { .. })));
        }
    });
    assert_eq!(tries.into_inner(), 1);
    assert!(is_idle(&outbox));
}

#[test]
fn a_sent_call_is_unknown_at_its_own_deadline_and_its_late_reply_reaches_no_other() {
    let outbox = Outbox::new(1, false);
    let (go_on, may_go_on) = mpsc::channel();
    outbox.occupy();
    thread::scope(|scope| {
        let waits = scope.spawn(|| {
            let short = (LONG, time::now().checked_add(2 * SHORT));
            let first = outbox.post(b"first", short, not_led);
            let next = outbox.post(b"next", terms(LONG), echo);
            (first, words(next))
        });
        until_waiting(&outbox, 1);
        let outbox = &outbox;
        let leads = scope.spawn(move || {
            let may_go_on = may_go_on;
            outbox.post(b"leader", terms(LONG), |write| {
                assert!(write.gather(|| true));
                assert_eq!(write.batch.len(), 2);
                may_go_on.recv().unwrap();
                answer_all(write);
                Ok(())
            })
        });
        until_waiting(outbox, 2);
        // The leading thread is woken, and sends the other letter too.
        outbox.letters.lock().waiting.rotate_left(1);
        outbox.set_free(None);
        // The first call is over, and the next one of its thread is in the outbox.
        until_waiting(outbox, 0);
        until_waiting(outbox, 1);
        go_on.send(()).unwrap();
        let (first, next) = waits.join().unwrap();
        assert!(is_unknown(&first));
        assert_eq!(next.as_deref(), Some(&b"next"[..]));
        assert_eq!(
            words(leads.join().unwrap()).as_deref(),
            Some(&b"leader"[..])
        );
    });
    assert!(is_idle(&outbox));
}

#[test]
fn the_next_leader_sends_what_one_could_not() {
    let outbox = Outbox::new(1, false);
    outbox.occupy();
    thread::scope(|scope| {
        let fails = scope.spawn(|| {
            let no_connection = |_: &mut SharedWrite<'_>| Err(was_not_sent(timed_out()));
            outbox.post(b"fails", terms(LONG), no_connection)
        });
        until_waiting(&outbox, 1);
        let waits = scope.spawn(|| outbox.post(b"waits", terms(LONG), echo));
        until_waiting(&outbox, 2);
        // By then the thread has found the lane occupied.
        thread::sleep(SHORT);
        outbox.set_free(None);
        assert!(matches!(fails.join().unwrap(), Err(Error::Pool { .. })));
        assert_eq!(words(waits.join().unwrap()).as_deref(), Some(&b"waits"[..]));
    });
    assert!(is_idle(&outbox));
}

#[test]
fn a_panicking_leader_leaves_no_call_unanswered() {
    let outbox = Outbox::new(1, false);
    outbox.occupy();
    thread::scope(|scope| {
        let panics = scope.spawn(|| {
            let lead = |write: &mut SharedWrite<'_>| {
                write.gather(|| true);
                panic!("the client library")
            };
            let asks = || outbox.post(b"panics", terms(LONG), lead);
            catch_unwind(AssertUnwindSafe(asks)).is_err()
        });
        until_waiting(&outbox, 1);
        let waits = scope.spawn(|| outbox.post(b"waits", terms(LONG), not_led));
        until_waiting(&outbox, 2);
        outbox.set_free(None);
        assert!(panics.join().unwrap());
        assert!(is_unknown(&waits.join().unwrap()));
    });
    assert!(is_idle(&outbox));
}

#[test]
fn heads_get_the_failure_of_the_write_before_them_at_once() {
    for has_failed in [false, true] {
        let outbox = Outbox::new(1, true);
        outbox.occupy();
        thread::scope(|scope| {
            let waits = scope.spawn(|| outbox.post(b"a", terms(LONG), echo));
            until_waiting(&outbox, 1);
            outbox.set_free(has_failed.then(|| was_not_sent(timed_out())));
            let came = waits.join().unwrap();
            assert_eq!(matches!(came, Err(Error::Pool { .. })), has_failed);
            assert_eq!(words(came).is_some(), !has_failed);
        });
        assert!(is_idle(&outbox));
    }
}

#[test]
fn a_call_cancelled_before_it_is_sent_leaves_while_another_waits_for_its_reply() {
    let outbox = Outbox::new(1, false);
    outbox.occupy();
    let cancel = Cancel::new();
    thread::scope(|scope| {
        let waits = scope.spawn(|| {
            outbox.ask(
                (b"a".to_vec(), None),
                Deadline::after(LONG),
                None,
                Some(&cancel),
                not_led,
            )
        });
        until_waiting(&outbox, 1);
        cancel.cancel();
        assert!(matches!(waits.join().unwrap(), Ok(None)));
    });
    outbox.set_free(None);
    assert!(is_idle(&outbox));
}

/// Some calls are cancelled, some have little time, and some leaders fail: all return.
#[test]
fn no_call_is_left_waiting() {
    for outbox in [Outbox::new(2, false), Outbox::new(1, true)] {
        drive(&outbox);
        assert!(is_idle(&outbox));
    }
}

fn drive(outbox: &Outbox) {
    thread::scope(|scope| {
        for number in 0..12_u32 {
            scope.spawn(move || {
                for call in 0..300_u32 {
                    let is_each = |n| (number + call).is_multiple_of(n);
                    let cancel = Cancel::new();
                    let little = Duration::from_micros(u64::from(call % 50));
                    let until = is_each(3).then(|| time::now() + little);
                    let send_by = Deadline::after(if is_each(5) { little } else { LONG });
                    let canceller = is_each(11).then(|| {
                        let cancel = cancel.clone();
                        thread::spawn(move || cancel.cancel())
                    });
                    let lead = |write: &mut SharedWrite<'_>| {
                        if is_each(13) {
                            return Err(was_not_sent(timed_out()));
                        }
                        echo(write)
                    };
                    let _ = outbox.ask((b"a".to_vec(), None), send_by, until, Some(&cancel), lead);
                    if let Some(canceller) = canceller {
                        canceller.join().unwrap();
                    }
                }
            });
        }
    });
}

/// A silent server costs one time-out in all, not one for each reply.
#[test]
fn a_silence_between_two_replies_costs_one_time_out() {
    let io_timeout = Duration::from_secs(1);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::scope(|scope| {
        let server = scope.spawn(move || {
            let (mut socket, _) = listener.accept().unwrap();
            let _ = socket.read(&mut [0; 64]);
            thread::sleep(io_timeout / 10 * 9);
            let _ = socket.write_all(b":1\r\n");
            socket
        });
        let address = ConnectionAddr::Tcp(String::from("127.0.0.1"), port);
        let settings = RedisConnectionInfo::default().set_skip_set_lib_name();
        let address = address.into_connection_info().unwrap();
        let client = Client::open(address.set_redis_settings(settings)).unwrap();
        let conn = client.get_connection().unwrap();
        conn.set_read_timeout(Some(io_timeout)).unwrap();
        let conn_lock = Mutex::new(conn);
        let outbox = Outbox::new(1, true);
        outbox.occupy();
        let took = thread::scope(|scope| {
            let calls = [(); 2].map(|()| {
                let (outbox, conn) = (&outbox, &conn_lock);
                scope.spawn(move || {
                    outbox.post(b"PING\r\n", terms(LONG), |write| {
                        assert!(write.gather(|| true));
                        let _ = write.exchange(&mut conn.lock(), io_timeout, false);
                        Ok(())
                    })
                })
            });
            until_waiting(&outbox, 2);
            let began = time::now();
            outbox.set_free(None);
            let came = calls.map(|call| call.join().unwrap());
            assert_eq!(came.iter().filter(|came| is_unknown(came)).count(), 1);
            began.elapsed()
        });
        assert!(took < io_timeout / 10 * 15, "{took:?}");
        drop(server.join());
    });
}

#[test]
fn calls_share_a_write_only_if_they_wait_for_the_same_replicas() {
    let outbox = Outbox::new(1, false);
    outbox.occupy();
    let writes = AtomicUsize::new(0);
    let lead = |write: &mut SharedWrite<'_>| {
        assert!(write.gather(|| true));
        writes.fetch_add(1, Ordering::SeqCst);
        assert_eq!(write.batch.len(), 3);
        let wanted = write.own.replicas;
        assert!(write.batch.iter().all(|letter| letter.replicas == wanted));
        answer_all(write);
        Ok(())
    };
    let replicas = |count| Replicas::wanted(count, SHORT).unwrap();
    let wants = [None, Some(replicas(1)), Some(replicas(2))];
    thread::scope(|scope| {
        let asking: Vec<_> = (0..9)
            .map(|number| {
                let letter = (b"a".to_vec(), wants[number % 3]);
                let ask = || outbox.ask(letter, Deadline::after(LONG), None, None, lead);
                scope.spawn(ask)
            })
            .collect();
        until_waiting(&outbox, 9);
        outbox.set_free(None);
        for one in asking {
            assert_eq!(words(one.join().unwrap()).as_deref(), Some(&b"a"[..]));
        }
    });
    assert_eq!(writes.into_inner(), 3);
    assert!(is_idle(&outbox));
}
