//! What is written under a lock whose slot stays open: nothing, until the slot has one place.

use std::thread;

use leasehold::{Nodes, Result, Token, commit_while_held, transaction_while_held};
use redis::{Commands, Connection, Value};

use super::{Open, is_refused};

/// A lock and data under it, which go to the other end or stay.
struct Work {
    lock: String,
    count: String,
    token: Token,
}

impl Work {
    fn commit(&self, nodes: &Nodes) -> Result<Value> {
        let count = &self.count;
        nodes.run(&self.lock, |conn| {
            commit_while_held(conn, &self.lock, &self.token, |pipe| {
                _ = pipe.incr(count, 1);
            })
        })
    }

    /// What it has read, and counted up.
    fn transaction(&self, nodes: &Nodes, keys: &[&str]) -> Result<Option<u64>> {
        let count = &self.count;
        nodes.run(&self.lock, |conn| {
            transaction_while_held(conn, &self.lock, &self.token, keys, |conn, pipe| {
                let before = conn.get(count)?;
                pipe.incr(count, 1);
                Ok(before)
            })
        })
    }
}

/// Where the lock and the data are at one end or at both.
#[test]
#[ignore = "seconds: cargo test --test many_servers -- --ignored --skip ::many_ --skip long:: --skip larger_world"]
fn what_is_written_under_a_lock_waits_until_its_slot_has_one_place() {
    let mut open = Open::closed_yet("under");
    let (nodes, hasty) = (open.nodes.clone(), open.hasty.clone());
    let mut all = Vec::new();
    for name in ["lock gone", "count gone", "both gone"] {
        let (lock, count) = (open.named(name), open.named(&format!("count under {name}")));
        let token = open.acquire(&lock).unwrap().unwrap();
        open.source.set::<_, _, ()>(&count, 5).unwrap();
        all.push(Work { lock, count, token });
    }
    open.open();
    let lock_of = |work: &Work| format!("lock:{}", work.lock);
    let gone = [
        lock_of(&all[0]),
        all[1].count.clone(),
        lock_of(&all[2]),
        all[2].count.clone(),
    ];
    for key in gone {
        assert_eq!(open.migrate(&key).unwrap(), Value::Okay);
    }
    let between = ["ASK", "TRYAGAIN"];
    thread::scope(|scope| {
        for work in &all {
            scope.spawn(|| {
                is_refused(&between, || work.commit(&hasty));
                is_refused(&between, || work.transaction(&hasty, &[]));
                is_refused(&between, || work.transaction(&hasty, &[&work.count]));
            });
        }
    });
    open.close();
    for work in &all {
        work.commit(&nodes).unwrap();
        assert_eq!(work.transaction(&nodes, &[]).unwrap(), Some(6));
        assert_eq!(work.transaction(&nodes, &[&work.count]).unwrap(), Some(7));
        assert!(open.release(&work.lock, &work.token).unwrap());
    }
}

/// Why nothing is written by `ASKING`: what is said here of a key that has not come yet would be taken for the truth.
#[test]
fn a_node_that_is_being_given_a_slot_reads_and_writes_beside_the_keys_that_have_not_come() {
    let mut open = Open::closed_yet("beside");
    let (here, there) = (open.named("here"), open.named("there"));
    for key in [&here, &there] {
        open.source.set::<_, _, ()>(key, 5).unwrap();
    }
    open.open();
    assert_eq!(open.migrate(&there).unwrap(), Value::Okay);
    let asking = |target: &mut Connection, commands: &[&[&str]]| {
        redis::cmd("ASKING").exec(target).unwrap();
        let answers = commands
            .iter()
            .map(|words| redis::cmd(words[0]).arg(&words[1..]).query(target));
        answers
            .last()
            .unwrap()
            .map_err(|error: redis::RedisError| error.code().unwrap().to_owned())
    };
    let target = &mut open.target;
    assert_eq!(asking(target, &[&["GET", &here]]), Ok(Value::Nil));
    assert_eq!(asking(target, &[&["WATCH", &here]]), Ok(Value::Okay));
    let both = asking(target, &[&["WATCH", &here, &there]]);
    assert_eq!(both, Err(String::from("TRYAGAIN")));
    let both: &[&[&str]] = &[&["MULTI"], &["INCR", &here], &["INCR", &there], &["EXEC"]];
    assert_eq!(asking(target, both), Err(String::from("TRYAGAIN")));
    let one: &[&[&str]] = &[&["MULTI"], &["INCR", &here], &["EXEC"]];
    assert_eq!(asking(target, one), Ok(Value::Array(vec![Value::Int(1)])));
    // There are two now, and that at the source cannot come any more.
    assert!(open.migrate(&here).is_err());
    assert_eq!(open.source.get::<_, u64>(&here).unwrap(), 5);
    open.source.del::<_, ()>(&here).unwrap();
}
