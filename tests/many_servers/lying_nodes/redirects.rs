//! Cluster nodes that redirect a lock to each other or to no node: no lock is granted, and no call
//! exceeds its time limit.

use std::{sync::Arc, thread, time::Instant};

use leasehold::{Error, Locks, Options, Pool};
use parking_lot::Mutex;

use super::{
    LIMIT, SLOT, SLOTS, Said, acquire, all_at, attempts, halves, master_and_replica_at, nodes_of,
    patient_builder, patient_nodes_of, refused, slots,
};
use crate::common::{
    Fake, LONG, MS, SLACK, Server,
    fake::HANG_UP,
    server::free_port,
    wait::{TOO_SLOW, unless_halted},
};

#[test]
fn nodes_that_redirect_to_each_other_are_followed_five_times() {
    let (a, b) = halves(None, |to| format!("-MOVED 1 127.0.0.1:{to}\r\n"));
    let nodes = patient_nodes_of(&[a.port(), b.port()]);
    let error = refused(&nodes);
    assert!(
        matches!(&error, Error::Redis { source, .. } if source.code() == Some("MOVED")),
        "{error:?}"
    );
    assert_eq!(attempts(&a) + attempts(&b), 6);
}

/// Number of attempts to acquire a lock.
fn tries(node: &Fake) -> usize {
    let asked = node.asked();
    let takes = |name: &&String| name.starts_with("EVAL") || name.as_str() == "SET";
    asked.iter().filter(takes).count()
}

#[test]
fn locks_follow_nodes_that_redirect_to_each_other_five_times() {
    // `try_acquire` does not wait until the nodes agree.
    for (code, sent) in [("MOVED", 6), ("ASK", 1)] {
        let (a, b) = halves(None, |to| format!("-{code} {SLOT} 127.0.0.1:{to}\r\n"));
        let locks = Locks::on_nodes(&patient_nodes_of(&[a.port(), b.port()]));
        let error = locks.lock("a").try_acquire().unwrap_err();
        assert!(
            matches!(&error, Error::Redis { source, .. } if source.code() == Some(code)),
            "{error:?}"
        );
        assert_eq!(tries(&a) + tries(&b), sent, "{code}");
    }
}

/// The first node to learn of a failover no longer names the old master; others still do.
#[test]
fn the_new_master_is_found_while_nodes_disagree_about_a_failover() {
    let layouts = Arc::new(Mutex::new(Vec::new()));
    let node = |role| {
        let layouts = Arc::clone(&layouts);
        Fake::saying(move |command, before| {
            let mut layouts = layouts.lock();
            let is_over = layouts.len() == 1;
            let rest = ["-CLUSTERDOWN not yet\r\n", "+OK\r\n"][usize::from(is_over)];
            let said = Said::new(rest);
            let slots = layouts.last().cloned().unwrap_or_default();
            said.now(|words| (words.role, words.slots) = (role, slots));
            if command == "CLUSTER SLOTS" && !is_over {
                layouts.pop();
            }
            said.answer(command, before)
        })
    };
    let (old, new) = (node("slave"), node("master"));
    let before = master_and_replica_at(old.port(), new.port());
    let after = all_at(new.port());
    // From the last one to the first.
    *layouts.lock() = vec![after.clone(), before.clone(), after, before];
    let nodes = patient_nodes_of(&[old.port(), new.port()]);
    assert!(acquire(&nodes).unwrap());
}

/// From a millisecond to a quarter of a second: the sixth pause is longer than all before it.
#[test]
#[ignore = "seconds: cargo test --test many_servers -- --ignored --skip ::many_ --skip long::"]
fn a_waiter_asks_less_and_less_often_while_redirects_go_nowhere() {
    let wait = 2 * LIMIT;
    for (code, each_time) in [("MOVED", 6), ("CLUSTERDOWN", 1)] {
        let says = |to: u16| match code {
            "MOVED" => format!("-MOVED {SLOT} 127.0.0.1:{to}\r\n"),
            down => format!("-{down} The cluster is down\r\n"),
        };
        let (a, b) = halves(None, says);
        let locks = Locks::on_nodes(&nodes_of(&[a.port(), b.port()]));
        let asked = Instant::now();
        let error = locks.lock("a").acquire(wait).unwrap_err();
        let took = asked.elapsed();
        assert!((wait..wait + SLACK).contains(&took), "{code} {took:?}");
        assert!(
            matches!(&error, Error::Redis { source, .. } if source.code() == Some(code)),
            "{error:?}"
        );
        let tries = tries(&a) + tries(&b);
        // Each pause may be shorter by half.
        let pauses = 8 + 2 * usize::try_from(wait.as_millis()).unwrap() / 250;
        assert!(
            (each_time..=each_time * (pauses + 1)).contains(&tries),
            "{tries} of {each_time}"
        );
    }
}

#[test]
fn redirects_to_nowhere_grant_no_lock() {
    let (one, other) = (Said::new(""), Said::new(""));
    let (a, b) = (one.by_a_node(), other.by_a_node());
    for (to_b, to_a) in [
        (
            format!("-MOVED 1 127.0.0.1:{}\r\n", b.port()),
            format!("-MOVED 1 127.0.0.1:{}\r\n", a.port()),
        ),
        (
            format!("-ASK 1 127.0.0.1:{}\r\n", b.port()),
            format!("-ASK 1 127.0.0.1:{}\r\n", a.port()),
        ),
        (
            String::from("-MOVED 1 127.0.0.1:1\r\n"),
            String::from("-ASK 1 127.0.0.1:1\r\n"),
        ),
        (
            String::from("-TRYAGAIN no\r\n"),
            String::from("-CLUSTERDOWN no\r\n"),
        ),
    ] {
        for (said, words_to) in [(&one, &to_b), (&other, &to_a)] {
            said.now(|words| {
                words.slots = all_at(a.port());
                words.rest.clone_from(words_to);
            });
        }
        let locks = Locks::on_nodes(&nodes_of(&[a.port(), b.port()]));
        let asked = Instant::now();
        assert!(locks.lock("a").acquire(LIMIT).is_err(), "{to_b}");
        let took = asked.elapsed();
        assert!(took < 2 * LIMIT + SLACK, "{to_b} {took:?}");
        let asked = Instant::now();
        assert!(
            !matches!(locks.write("a").try_acquire(), Ok(Some(_))),
            "{to_b}"
        );
        let took = asked.elapsed();
        assert!(took < 2 * LIMIT + SLACK, "{to_b} {took:?}");
    }
}

#[test]
fn a_redirect_without_a_host_is_ignored() {
    for nowhere in [
        "127.0.0.1:1",
        "127.0.0.1:0",
        ":1",
        "1",
        "no.such.host.invalid:1",
        "?:1",
        "",
    ] {
        let said = Said::new(&format!("-MOVED 1 {nowhere}\r\n"));
        let node = said.by_a_node();
        said.now(|words| words.slots = all_at(node.port()));
        unless_halted(|| {
            let asked_before = attempts(&node);
            let error = refused(&nodes_of(&[node.port()]));
            assert!(
                matches!(error, Error::Redis { .. } | Error::Pool { .. }),
                "{nowhere} {error:?}"
            );
            let asked = attempts(&node) - asked_before;
            assert!(asked >= 1, "{TOO_SLOW} {nowhere}: {error:?}");
        });
    }
}

/// The call retries a refusal that changed nothing, and then returns it.
#[test]
fn transient_refusals_are_retried_until_the_deadline() {
    for answer in [
        "-ASK 1 127.0.0.1:1\r\n",
        "-TRYAGAIN Multiple keys request during rehashing of slot\r\n",
        "-CLUSTERDOWN The cluster is down\r\n",
    ] {
        let said = Said::new(answer);
        let node = said.by_a_node();
        said.now(|words| words.slots = all_at(node.port()));
        let nodes = nodes_of(&[node.port()]);
        let asked = Instant::now();
        let error = refused(&nodes);
        assert!(
            asked.elapsed() > LIMIT * 3 / 4,
            "{answer} {:?}",
            asked.elapsed()
        );
        let code = answer[1..].split(' ').next();
        assert!(
            matches!(&error, Error::Redis { source, .. } if source.code() == code),
            "{error:?}"
        );
        // With pauses in between.
        assert!(
            (3..=LIMIT.as_millis() as usize).contains(&attempts(&node)),
            "{answer}"
        );
        // The refusal has passed.
        said.now(|words| words.rest = String::from("+OK\r\n"));
        assert!(acquire(&nodes).unwrap(), "{answer}");
    }
}

/// Another thread took the pool's only connection before the retry.
#[test]
fn the_servers_refusal_is_the_error_if_no_connection_is_left_to_retry() {
    let server = Server::start().unwrap();
    let said = Said::new("");
    said.now(|words| words.slots = all_at(server.port()));
    let node = said.by_a_node();
    let nodes = Pool::builder().max_size(1).get_timeout(LIMIT);
    let nodes = nodes.connect_nodes(&format!("redis+cluster://127.0.0.1:{}", node.port()));
    let nodes = &nodes.unwrap();
    let (over, is_over) = std::sync::mpsc::channel::<()>();
    let mut waits = Some(move || {
        let conn = nodes.get_for("a");
        let _ = is_over.recv();
        drop(conn);
    });
    thread::scope(|scope| {
        let outcome = nodes.run("a", |_| {
            if let Some(waits) = waits.take() {
                scope.spawn(waits);
                thread::sleep(100 * MS);
            }
            let answer = redis::parse_redis_value(b"-TRYAGAIN no\r\n").unwrap();
            Err::<(), _>(Error::from(answer.extract_error().unwrap_err()))
        });
        drop(over);
        let error = outcome.unwrap_err();
        assert!(
            matches!(&error, Error::Redis { source, .. } if source.code() == Some("TRYAGAIN")),
            "{error:?}"
        );
    });
}

/// A node behind network address translation.
#[test]
fn an_announced_node_is_reached_through_the_address_map() {
    let (one, other) = (
        Said::new(&format!("-MOVED {SLOT} b.nat:2\r\n")),
        Said::new("*0\r\n"),
    );
    let (a, b) = (one.by_a_node(), other.by_a_node());
    // The slot's owner is the other shard's node, known by this answer alone.
    let halves = slots(&[(0, 8_191, "a.nat", 1), (8_192, SLOTS - 1, "b.nat", 2)]);
    one.now(|words| words.slots = halves.clone());
    other.now(|words| (words.slots, words.set) = (halves, Some("+OK\r\n")));
    let ports = [a.port(), b.port()];
    let builder = patient_builder().connect_timeout(LONG);
    let nodes = builder.address_map(move |host, port| match host {
        "a.nat" => (String::from("127.0.0.1"), ports[0]),
        "b.nat" => (String::from("127.0.0.1"), ports[1]),
        host => (host.to_owned(), port),
    });
    let nodes = nodes.connect_nodes(&format!("redis+cluster://127.0.0.1:{}", a.port()));
    let nodes = nodes.unwrap();
    // On a slow machine the map is fetched again, with the same result.
    assert!((0..5).any(|_| matches!(acquire(&nodes), Ok(true))));
    assert!(attempts(&b) > 0);
}

/// The attempt was sent on a connection that closed, and again on another, which answers that the
/// slot is migrating.
#[test]
fn a_request_that_may_have_run_is_unknown_if_the_slot_moves() {
    let gone = free_port().unwrap();
    let said = Said::new(&format!("-ASK {SLOT} 127.0.0.1:{}\r\n", gone.number()));
    let says = said.clone();
    let master = Fake::saying(move |command, before| match (command, before) {
        ("SET", 0) => HANG_UP.to_vec(),
        _ => says.answer(command, before),
    });
    said.now(|words| words.slots = master_and_replica_at(master.port(), gone.number()));
    let nodes = patient_nodes_of(&[master.port()]);
    let locks = Locks::on_nodes(&nodes).with(Options::new().fencing(false));
    let answer = locks.lock("a").try_acquire();
    assert!(matches!(answer, Err(Error::Unknown { .. })), "{answer:?}");
    assert!(master.asked().iter().any(|it| it.starts_with("EVALSHA")));
}

/// The slot has arrived by the next attempt.
#[test]
fn a_wait_continues_while_the_slot_moves() {
    let gone = free_port().unwrap();
    let ask = format!("-ASK {SLOT} 127.0.0.1:{}\r\n", gone.number());
    let said = Said::new(":1\r\n");
    let says = said.clone();
    let master = Fake::saying(move |command, before| match (command, before) {
        ("SET", 0) => HANG_UP.to_vec(),
        ("EVALSHA", 0) => ask.clone().into_bytes(),
        _ => says.answer(command, before),
    });
    said.now(|words| words.slots = master_and_replica_at(master.port(), gone.number()));
    let nodes = patient_nodes_of(&[master.port()]);
    let locks = Locks::on_nodes(&nodes).with(Options::new().fencing(false));
    drop(locks.lock("a").acquire(LONG).unwrap());
}
