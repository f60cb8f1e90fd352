//! The article's cluster edition, together with programs on the article's own scripts on the same
//! key.

use std::time::{Duration, Instant};

use crate::common::{
    SLACK,
    hash_world::{KEY, World, tokens},
};
use leasehold::book::article::one_hash::acquire_write;
use redis::Commands;

const WAIT: Duration = Duration::from_secs(5);

/// 读锁可重入 支持 · 锁只能被当前线程删除 支持 · 超时自动释放 支持 · 写锁当前线程可重入 不支持.
#[test]
fn the_table_of_the_article() {
    let mut a = World::new();
    let [first, again, other] = tokens();
    assert!(a.reads(&first) && a.reads(&again));
    assert!(!a.stops_reading(&other) && !a.stops_writing(&first));
    assert!(!a.writes(&other));
    assert!(a.stops_reading(&first) && a.stops_reading(&again));
    assert!(a.is_free());

    assert!(a.writes(&first) && !a.writes(&again), "entered twice");
    assert!(!a.stops_writing(&other) && !a.stops_reading(&first));
    assert!(a.stops_writing(&first));

    a.leases.write = Duration::from_millis(60);
    assert!(a.writes(&first));
    let came = Instant::now();
    assert!(acquire_write(&mut a.conn, KEY, &other, WAIT, &a.leases).unwrap());
    assert!(came.elapsed() < a.leases.write + SLACK);
    assert!(!a.stops_writing(&first));
}

#[test]
fn the_articles_programs_and_ours_exclude_each_other() {
    let mut a = World::new();
    let [reader, writer] = tokens();
    let theirs = a.now();
    assert!(a.article_acquires("read", theirs));
    assert!(!a.writes(&writer));
    a.article_releases("read", theirs);
    assert!(a.writes(&writer));
    let now = a.now();
    assert!(!a.article_acquires("read", now) && !a.article_acquires("write", now));
    assert!(a.stops_writing(&writer));

    let theirs = a.now();
    assert!(a.article_acquires("write", theirs));
    assert!(!a.writes(&writer) && !a.reads(&reader) && !a.stops_writing(&writer));
    a.article_releases("write", theirs);
    assert!(a.reads(&reader));
    assert!(!a.article_acquires("write", theirs));
    assert!(a.stops_reading(&reader));
    assert!(a.article_acquires("write", theirs));
}

#[test]
fn readers_of_both_kinds_come_and_go_in_any_order() {
    let mut a = World::new();
    let [one, two, writer] = tokens();

    // Theirs comes first and stays longest.
    let theirs = a.now();
    assert!(a.article_acquires("read", theirs));
    assert!(a.reads(&one) && a.reads(&two));
    assert!(a.stops_reading(&two) && a.stops_reading(&one));
    assert_eq!(a.field("read"), Some(theirs.to_string()), "restored");
    assert!(!a.writes(&writer) && !a.article_acquires("write", theirs));
    a.article_releases("read", theirs);
    a.conn.del::<_, ()>(KEY).unwrap();

    // Theirs comes last and leaves last.
    assert!(a.reads(&one));
    let theirs = a.now();
    assert!(a.article_acquires("read", theirs));
    assert!(a.stops_reading(&one));
    assert!(!a.writes(&writer) && !a.article_acquires("write", theirs));
    a.article_releases("read", theirs);
    assert!(a.is_free());
}

/// Someone removed `write` by hand, or acquired the lock with a wrong clock and released it.
#[test]
fn a_writer_whose_mode_is_gone_has_lost_the_lock() {
    let mut a = World::new();
    let [lost, next] = tokens();
    assert!(a.writes(&lost));
    a.conn.hdel::<_, _, ()>(KEY, "write").unwrap();
    assert!(!a.stops_writing(&lost) && a.writes(&next));
    assert_eq!(a.fields(), 2, "no field of the other remains");
    assert!(!a.stops_writing(&lost) && a.stops_writing(&next));
}
