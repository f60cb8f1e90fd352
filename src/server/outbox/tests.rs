//! An outbox whose server is a function.
#![allow(clippy::panic, reason = "a test fails by panicking")]

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
};

use super::*;

const LONG: Duration = Duration::from_secs(20);
const SHORT: Duration = Duration::from_millis(100);

fn terms(send_by: Duration) -> SendTerms {
    SendTerms {
        alone: false,
        send_by: Deadline::after(send_by),
        learns_why: false,
        until: None,
    }
}

/// As a head of a queue.
fn learning(send_by: Duration) -> SendTerms {
    SendTerms {
        learns_why: true,
        ..terms(send_by)
    }
}

/// A server that answers each call with its own words.
#[allow(clippy::unnecessary_wraps, reason = "as what leads")]
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

/// Until so many letters lie there.
fn until_waiting(outbox: &Outbox, count: usize) {
    while outbox.letters.lock().waiting.len() != count {
        thread::yield_now();
    }
}

fn is_idle(outbox: &Outbox) -> bool {
    let letters = outbox.letters.lock();
    letters.out == 0 && letters.waiting.is_empty()
}

#[test]
fn each_call_gets_its_own_answer() {
    for lanes in [1, 3] {
        let outbox = Outbox::new(lanes);
        thread::scope(|scope| {
            for number in 0..8_u32 {
                let outbox = &outbox;
                scope.spawn(move || {
                    for call in 0..500_u32 {
                        let packed = [number.to_be_bytes(), call.to_be_bytes()].concat();
                        let came = outbox.ask(packed.clone(), terms(LONG), None, echo);
                        assert_eq!(words(came), Some(packed));
                    }
                });
            }
        });
        assert!(is_idle(&outbox));
    }
}

#[test]
fn what_lies_there_goes_in_one_write() {
    let outbox = Outbox::new(1);
    let writes = AtomicUsize::new(0);
    let lane = outbox.free_lane().unwrap();
    thread::scope(|scope| {
        for _ in 0..100 {
            scope.spawn(|| {
                let came = outbox.ask(b"a".to_vec(), terms(LONG), None, |write| {
                    writes.fetch_add(1, Ordering::SeqCst);
                    echo(write)
                });
                assert!(words(came).is_some());
            });
        }
        until_waiting(&outbox, 100);
        drop(lane);
    });
    assert_eq!(writes.into_inner(), 1);
}

#[test]
fn a_call_whose_time_is_over_before_it_is_sent_was_not_sent() {
    let outbox = Outbox::new(1);
    let lane = outbox.free_lane();
    let short = SendTerms {
        until: time::now().checked_add(SHORT),
        ..terms(SHORT)
    };
    for terms in [terms(SHORT), short] {
        assert!(matches!(
            outbox.ask(b"a".to_vec(), terms, None, not_led),
            Ok(None)
        ));
    }
    drop(lane);
    assert!(is_idle(&outbox));
}

#[test]
fn a_call_that_may_not_lead_is_left_to_its_caller_where_nobody_leads() {
    let outbox = Outbox::new(1);
    let short = SendTerms {
        until: time::now().checked_add(LONG),
        ..terms(LONG)
    };
    assert!(matches!(
        outbox.ask(b"a".to_vec(), short, None, not_led),
        Ok(None)
    ));
    let lane = outbox.free_lane();
    thread::scope(|scope| {
        let waits = scope.spawn(|| outbox.ask(b"a".to_vec(), short, None, not_led));
        until_waiting(&outbox, 1);
        drop(lane);
        assert!(matches!(waits.join().unwrap(), Ok(None)));
    });
    assert!(is_idle(&outbox));
}

#[test]
fn a_call_that_is_woken_and_may_not_lead_wakes_the_next() {
    let outbox = Outbox::new(1);
    let lane = outbox.free_lane();
    let short = SendTerms {
        until: time::now().checked_add(LONG),
        ..terms(LONG)
    };
    thread::scope(|scope| {
        let woken = scope.spawn(|| outbox.ask(b"woken".to_vec(), short, None, not_led));
        until_waiting(&outbox, 1);
        let next = scope.spawn(|| outbox.ask(b"next".to_vec(), terms(LONG / 4), None, echo));
        until_waiting(&outbox, 2);
        drop(lane);
        assert!(matches!(woken.join().unwrap(), Ok(None)));
        assert_eq!(words(next.join().unwrap()).as_deref(), Some(&b"next"[..]));
    });
    assert!(is_idle(&outbox));
}

/// Otherwise each of them would wait as long for a connection, one after the other.
#[test]
fn heads_behind_one_that_found_no_connection_are_told_so_at_once() {
    let outbox = Outbox::new(1);
    let lane = outbox.free_lane();
    let tries = AtomicUsize::new(0);
    thread::scope(|scope| {
        let ask = || {
            let no_connection = |_: &mut SharedWrite<'_>| {
                tries.fetch_add(1, Ordering::SeqCst);
                Err(silent(silence()))
            };
            outbox.ask(b"a".to_vec(), learning(LONG), None, no_connection)
        };
        let heads: Vec<_> = (0..5).map(|_| scope.spawn(ask)).collect();
        until_waiting(&outbox, 5);
        drop(lane);
        for head in heads {
            assert!(matches!(head.join().unwrap(), Err(Error::Pool { .. })));
        }
    });
    assert_eq!(tries.into_inner(), 1);
    assert!(is_idle(&outbox));
}

#[test]
fn a_call_that_was_sent_is_unknown_at_its_own_time_and_a_late_answer_is_nobody_elses() {
    let outbox = Outbox::new(1);
    let (go_on, may_go_on) = mpsc::channel();
    let lane = outbox.free_lane();
    thread::scope(|scope| {
        let waits = scope.spawn(|| {
            let short = SendTerms {
                until: time::now().checked_add(2 * SHORT),
                ..terms(LONG)
            };
            let first = outbox.ask(b"first".to_vec(), short, None, not_led);
            let next = outbox.ask(b"next".to_vec(), terms(LONG), None, echo);
            (first, words(next))
        });
        until_waiting(&outbox, 1);
        let outbox = &outbox;
        let leads = scope.spawn(move || {
            let may_go_on = may_go_on;
            outbox.ask(b"leader".to_vec(), terms(LONG), None, |write| {
                assert!(write.gather(|| true));
                assert_eq!(write.batch.len(), 2);
                may_go_on.recv().unwrap();
                answer_all(write);
                Ok(())
            })
        });
        until_waiting(outbox, 2);
        // The one that leads is woken, and takes the other along.
        outbox.letters.lock().waiting.rotate_left(1);
        drop(lane);
        // The call is over, and the next one of its thread lies there.
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
fn what_one_leader_could_not_send_the_next_sends() {
    let outbox = Outbox::new(1);
    let lane = outbox.free_lane();
    thread::scope(|scope| {
        let fails = scope.spawn(|| {
            let no_connection = |_: &mut SharedWrite<'_>| Err(silent(silence()));
            outbox.ask(b"fails".to_vec(), terms(LONG), None, no_connection)
        });
        until_waiting(&outbox, 1);
        let waits = scope.spawn(|| outbox.ask(b"waits".to_vec(), terms(LONG), None, echo));
        until_waiting(&outbox, 2);
        drop(lane);
        assert!(matches!(fails.join().unwrap(), Err(Error::Pool { .. })));
        assert_eq!(words(waits.join().unwrap()).as_deref(), Some(&b"waits"[..]));
    });
    assert!(is_idle(&outbox));
}

#[test]
fn a_leader_that_panics_leaves_no_call_without_an_answer() {
    let outbox = Outbox::new(1);
    let lane = outbox.free_lane();
    thread::scope(|scope| {
        let panics = scope.spawn(|| {
            let lead = |write: &mut SharedWrite<'_>| {
                write.gather(|| true);
                panic!("the client library")
            };
            let asks = || outbox.ask(b"panics".to_vec(), terms(LONG), None, lead);
            catch_unwind(AssertUnwindSafe(asks)).is_err()
        });
        until_waiting(&outbox, 1);
        let waits = scope.spawn(|| outbox.ask(b"waits".to_vec(), terms(LONG), None, not_led));
        until_waiting(&outbox, 2);
        drop(lane);
        assert!(panics.join().unwrap());
        assert!(is_unknown(&waits.join().unwrap()));
    });
    assert!(is_idle(&outbox));
}

#[test]
fn a_head_that_was_not_sent_in_time_learns_whether_the_write_before_it_has_failed() {
    for has_failed in [false, true] {
        let outbox = Outbox::new(1);
        let mut lane = outbox.free_lane().unwrap();
        thread::scope(|scope| {
            let waits = scope.spawn(|| outbox.ask(b"a".to_vec(), learning(SHORT), None, not_led));
            until_waiting(&outbox, 1);
            thread::sleep(SHORT);
            lane.failure = has_failed.then(|| silent(silence()));
            drop(lane);
            let came = waits.join().unwrap();
            assert_eq!(matches!(came, Ok(None)), !has_failed, "{came:?}");
            assert_eq!(matches!(came, Err(Error::Pool { .. })), has_failed);
        });
        assert!(is_idle(&outbox));
    }
}

#[test]
fn a_call_that_is_called_off_before_it_is_sent_leaves_while_another_is_being_answered() {
    let outbox = Outbox::new(1);
    let lane = outbox.free_lane();
    let cancel = Cancel::new();
    thread::scope(|scope| {
        let waits =
            scope.spawn(|| outbox.ask(b"a".to_vec(), learning(LONG), Some(&cancel), not_led));
        until_waiting(&outbox, 1);
        cancel.cancel();
        assert!(matches!(waits.join().unwrap(), Ok(None)));
    });
    drop(lane);
    assert!(is_idle(&outbox));
}

/// Some are called off, some have little time, and some leaders fail: all come back.
#[test]
fn no_call_is_left_waiting() {
    let outbox = Outbox::new(2);
    thread::scope(|scope| {
        for number in 0..12_u32 {
            let outbox = &outbox;
            scope.spawn(move || {
                for call in 0..300_u32 {
                    let is_each = |n| (number + call).is_multiple_of(n);
                    let cancel = Cancel::new();
                    let little = Duration::from_micros(u64::from(call % 50));
                    let terms = SendTerms {
                        alone: is_each(7),
                        learns_why: is_each(2),
                        until: is_each(3).then(|| time::now() + little),
                        ..terms(if is_each(5) { little } else { LONG })
                    };
                    let canceller = is_each(11).then(|| {
                        let cancel = cancel.clone();
                        thread::spawn(move || cancel.cancel())
                    });
                    let lead = |write: &mut SharedWrite<'_>| {
                        if is_each(13) {
                            return Err(silent(silence()));
                        }
                        echo(write)
                    };
                    let _ = outbox.ask(b"a".to_vec(), terms, Some(&cancel), lead);
                    if let Some(canceller) = canceller {
                        canceller.join().unwrap();
                    }
                }
            });
        }
    });
    assert!(is_idle(&outbox));
}
