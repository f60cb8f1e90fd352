//! A combiner whose server is a function.

mod threads;

use std::{
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::{
        Barrier,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use redis::Value;

use super::*;
use crate::{error::Error, time::now};

const MS: Duration = Duration::from_millis(1);
const LONG: Duration = Duration::from_secs(20);

/// Of calls that wait for as long as they have to.
fn usual() -> Terms {
    Terms {
        io_timeout: 4 * LONG,
        unsent: LONG,
        until: None,
    }
}

fn combiner() -> Combiner {
    let combiner = Combiner::default();
    combiner.crowd.go_together_always();
    combiner
}

/// A server that repeats the numbers that it is sent.
fn echo(turn: &mut Turn<'_>) {
    turn.gather(|| true);
    let numbers = turn.packed().to_vec();
    for number in numbers {
        turn.answer(Ok(Value::Int(number.into())));
    }
}

fn number(came: &Result<Came>) -> Option<i64> {
    match came {
        Ok(Came::Answer((Ok(Value::Int(number)), _))) => Some(*number),
        _ => None,
    }
}

/// Waits until so many calls are in the outbox.
fn until_in_outbox(combiner: &Combiner, count: usize) {
    while combiner.waiting() < count {
        thread::sleep(MS);
    }
}

/// While the first call is on its way, more of them come, one after another: who leads them next does so with this. What came
/// of them.
fn behind_another(
    others: &[Terms],
    lead: impl Fn(&mut Turn<'_>) -> Result<()> + Sync,
) -> Vec<thread::Result<Result<Came>>> {
    let (combiner, gathered) = (combiner(), Barrier::new(2));
    thread::scope(|scope| {
        let (combiner, gathered, lead) = (&combiner, &gathered, &lead);
        let first = scope.spawn(move || {
            combiner.ask(&[0], usual(), |turn| {
                turn.gather(|| true);
                gathered.wait();
                turn.answer(Ok(Value::Int(0)));
                Ok(())
            })
        });
        while combiner.waiting() > 0 || !combiner.outbox.lock().is_led() {
            thread::sleep(MS);
        }
        let others: Vec<_> = (1..)
            .zip(others)
            .map(|(number, terms)| {
                let ask = move || combiner.ask(&[number], *terms, lead);
                let asking = scope.spawn(move || catch_unwind(AssertUnwindSafe(ask)));
                until_in_outbox(combiner, number.into());
                asking
            })
            .collect();
        gathered.wait();
        assert_eq!(number(&first.join().unwrap()), Some(0));
        let came = others
            .into_iter()
            .map(|asked| asked.join().unwrap())
            .collect();
        assert_eq!(combiner.waiting(), 0);
        assert_eq!(
            number(&combiner.ask(&[9], usual(), |turn| {
                echo(turn);
                Ok(())
            })),
            Some(9)
        );
        came
    })
}

#[test]
fn what_gathered_goes_in_one_write_and_each_gets_its_own_answer() {
    let writes = AtomicUsize::new(0);
    let came = behind_another(&[usual(); 3], |turn| {
        writes.fetch_add(1, Ordering::SeqCst);
        echo(turn);
        Ok(())
    });
    let came: Vec<_> = came
        .into_iter()
        .map(|came| number(&came.unwrap()))
        .collect();
    assert_eq!(came, [Some(1), Some(2), Some(3)]);
    assert_eq!(writes.into_inner(), 1);
}

#[test]
fn after_a_panic_of_the_leader_all_are_told_and_another_leads() {
    for answered in 0..3 {
        let came = behind_another(&[usual(); 3], |turn| {
            turn.gather(|| true);
            for _ in 0..answered {
                turn.answer(Ok(Value::Int(7)));
            }
            resume_unwind(Box::new("as a client library may"));
        });
        let mut came = came.into_iter();
        assert!(came.next().unwrap().is_err());
        for (place, came) in came.enumerate() {
            let came = came.unwrap();
            let Ok(Came::Answer((answer, _))) = &came else {
                unreachable!("{came:?}");
            };
            assert_eq!(answer.is_ok(), place + 1 < answered, "{place}: {came:?}");
        }
    }
}

/// It was woken, and did not come so far for as long as another took its call along and answered it.
#[test]
fn who_has_been_answered_leads_no_more() {
    let combiner = combiner();
    let woken = Slot::of_this_thread(&[1]).unwrap();
    woken.set(Stage::Next);
    woken.tell((Ok(Value::Int(1)), now()));
    assert!(!combiner.leads_now(&woken));
    assert!(!combiner.outbox.lock().is_led());
}

#[test]
fn a_leader_that_can_do_nothing_fails_alone() {
    let leaders = AtomicUsize::new(0);
    let came = behind_another(&[usual(); 3], |turn| {
        if leaders.fetch_add(1, Ordering::SeqCst) == 0 {
            return Err(Error::Forked);
        }
        echo(turn);
        Ok(())
    });
    let came: Vec<_> = came
        .into_iter()
        .map(|came| number(&came.unwrap()))
        .collect();
    assert_eq!(came, [None, Some(2), Some(3)]);
}

#[test]
fn who_waits_for_less_time_leads_nobody_who_waits_for_longer_and_keeps_nobody() {
    let soon = |wait| Terms {
        until: Some(now() + wait),
        ..usual()
    };
    let writes = Mutex::new(Vec::new());
    let came = behind_another(&[soon(LONG), usual(), soon(2 * LONG)], |turn| {
        turn.gather(|| true);
        writes.lock().push(turn.packed().to_vec());
        for _ in 0..turn.owed() {
            turn.answer(Ok(Value::Okay));
        }
        Ok(())
    });
    assert!(
        came.iter()
            .all(|came| matches!(came, Ok(Ok(Came::Answer(_)))))
    );
    // The second leads, and has the first and the third along.
    assert_eq!(writes.into_inner(), [[2, 1, 3]]);
}

#[test]
fn a_call_that_nobody_takes_leaves_the_line_and_one_that_was_taken_is_waited_for_until_its_end() {
    let (combiner, busy, over) = (combiner(), Barrier::new(2), Barrier::new(2));
    thread::scope(|scope| {
        let leading = scope.spawn(|| {
            combiner.ask(&[0], usual(), |turn| {
                busy.wait();
                until_in_outbox(&combiner, 2);
                turn.gather(|| true);
                over.wait();
                Ok(())
            })
        });
        busy.wait();
        let taken = scope.spawn(|| {
            let until = Some(now() + 900 * MS);
            let asked = Instant::now();
            let came = combiner.ask(&[1], Terms { until, ..usual() }, |_| Ok(()));
            (came, asked.elapsed())
        });
        let (came, took) = taken.join().unwrap();
        let terms = Terms {
            unsent: 50 * MS,
            ..usual()
        };
        let untaken = combiner.ask(&[2], terms, |_| Ok(()));
        over.wait();
        assert!(matches!(untaken, Ok(Came::Unsent)), "{untaken:?}");
        assert!(
            matches!(&came, Ok(Came::Answer((Err(error), _))) if error.is_timeout()),
            "{came:?}"
        );
        assert!(took >= 900 * MS && took < 5_000 * MS, "{took:?}");
        assert!(leading.join().unwrap().is_ok());
    });
    assert_eq!(combiner.waiting(), 0);
}

#[test]
fn many_threads_get_the_answers_to_what_they_asked() {
    let combiner = combiner();
    thread::scope(|scope| {
        for own in 0..8_u8 {
            let combiner = &combiner;
            scope.spawn(move || {
                for round in 0..200_u8 {
                    let asked = own.wrapping_mul(31).wrapping_add(round);
                    let came = combiner.ask(&[asked], usual(), |turn| {
                        echo(turn);
                        Ok(())
                    });
                    assert_eq!(number(&came), Some(asked.into()));
                }
            });
        }
    });
    assert!(!combiner.outbox.lock().is_led());
}
