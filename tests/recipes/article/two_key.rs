//! The article's single-instance edition, together with programs on the article's own scripts on
//! the same keys.

use std::time::Duration;

use crate::common::{Server, article::two_key as article, start};
use leasehold::{
    Error, Token,
    book::article::two_key::{Keys, acquire_read, acquire_write, release_read, release_write},
};
use redis::{Commands, Connection};

const LEASE: Duration = Duration::from_secs(10);
const SHORT: Duration = Duration::from_millis(60);
const READ: &str = "readKey";
const WRITE: &str = "writeKey";
const NAMES: [&str; 2] = [READ, WRITE];

struct World {
    _server: Server,
    conn: Connection,
    keys: Keys,
}

impl World {
    fn new() -> Self {
        let (server, conn) = start();
        let keys = Keys::new(READ, WRITE).unwrap();
        Self {
            _server: server,
            conn,
            keys,
        }
    }

    fn reads(&mut self, token: &Token, lease: Duration) -> bool {
        acquire_read(&mut self.conn, &self.keys, token, Duration::ZERO, lease).unwrap()
    }

    fn writes(&mut self, token: &Token, lease: Duration) -> bool {
        acquire_write(&mut self.conn, &self.keys, token, Duration::ZERO, lease).unwrap()
    }

    fn stops_reading(&mut self, token: &Token) -> bool {
        release_read(&mut self.conn, &self.keys, token).unwrap()
    }

    fn stops_writing(&mut self, token: &Token) -> bool {
        release_write(&mut self.conn, &self.keys, token).unwrap()
    }

    fn left(&mut self, key: &str) -> i64 {
        self.conn.pttl(key).unwrap()
    }

    fn is_free(&mut self) -> bool {
        !self.conn.exists::<_, bool>(&NAMES[..]).unwrap()
    }
}

fn tokens<const N: usize>() -> [Token; N] {
    [(); N].map(|()| Token::random())
}

/// 读锁可重入 支持 · 锁只能被当前线程删除 不支持 (ours does) · 超时自动释放 支持 · 写锁当前线程可重入 不支持.
#[test]
fn the_table_of_the_article() {
    let mut a = World::new();
    let [first, again, other] = tokens();
    assert!(a.reads(&first, LEASE) && a.reads(&again, LEASE));
    assert!(!a.stops_reading(&other) && !a.stops_writing(&first));
    assert!(a.stops_reading(&first) && a.stops_reading(&again));
    assert!(a.is_free());

    assert!(a.writes(&first, LEASE));
    assert!(!a.writes(&again, LEASE), "entered twice");
    assert!(!a.stops_writing(&other) && !a.stops_reading(&first));
    assert!(a.stops_writing(&first) && a.writes(&first, SHORT));
    assert!(acquire_read(&mut a.conn, &a.keys, &other, LEASE, SHORT).unwrap());
    assert!(!a.stops_writing(&first));
    assert!(acquire_write(&mut a.conn, &a.keys, &again, LEASE, LEASE).unwrap());
    assert!(!a.stops_reading(&other) && a.stops_writing(&again));
    assert!(a.is_free());
}

#[test]
fn the_articles_programs_and_ours_exclude_each_other() {
    let mut a = World::new();
    let [reader, writer] = tokens();
    assert!(article::read(&mut a.conn, NAMES, 10));
    assert!(!a.writes(&writer, LEASE) && a.reads(&reader, LEASE));
    a.conn.del::<_, ()>(READ).unwrap();

    assert!(article::write(&mut a.conn, NAMES, 10));
    assert!(!a.writes(&writer, LEASE) && !a.reads(&reader, LEASE));
    assert!(!a.stops_writing(&writer), "it is not ours");
    a.conn.del::<_, ()>(WRITE).unwrap();

    assert!(a.reads(&reader, LEASE));
    assert!(article::read(&mut a.conn, NAMES, 10));
    assert!(!article::write(&mut a.conn, NAMES, 10));
    a.conn.del::<_, ()>(READ).unwrap();

    assert!(a.writes(&writer, LEASE));
    assert!(!article::read(&mut a.conn, NAMES, 10));
    assert!(!article::write(&mut a.conn, NAMES, 10));
    assert!(a.stops_writing(&writer));
    assert!(article::write(&mut a.conn, NAMES, 10));
}

#[test]
fn trap_36_a_later_reader_never_shortens_an_earlier_ones_lease() {
    let mut a = World::new();
    let [long, short, writer] = tokens();
    assert!(a.reads(&long, LEASE * 10) && a.reads(&short, LEASE));
    assert!(a.left(READ) > 90_000);
    assert!(a.reads(&long, LEASE), "sent again, for less");
    assert!(a.left(READ) > 90_000);
    assert!(a.stops_reading(&short) && !a.writes(&writer, LEASE));

    // Nor the lock of a reader of the article's.
    assert!(a.stops_reading(&long) && article::read(&mut a.conn, NAMES, 100));
    assert!(a.reads(&short, LEASE) && a.left(READ) > 90_000);
    assert!(a.stops_reading(&short) && a.left(READ) > 90_000);
    assert!(!article::write(&mut a.conn, NAMES, 10));
}

#[test]
fn trap_36_the_writers_value_is_its_token() {
    let mut a = World::new();
    let [late, next] = tokens();
    assert!(a.writes(&late, LEASE));
    assert_eq!(a.conn.get(WRITE), Ok(late.to_string()));
    assert!(
        a.writes(&late, SHORT) && a.left(WRITE) > 5_000,
        "sent again"
    );
    a.conn.del::<_, ()>(WRITE).unwrap();
    assert!(a.writes(&next, LEASE) && !a.stops_writing(&late));
    assert!(a.stops_writing(&next));

    // A token that every writer of the article's uses identifies no writer.
    let refused = acquire_write(
        &mut a.conn,
        &a.keys,
        &"1".parse().unwrap(),
        Duration::ZERO,
        LEASE,
    );
    assert!(
        matches!(
            refused,
            Err(Error::Invalid {
                argument: "token",
                ..
            })
        ),
        "{refused:?}"
    );
    assert!(a.is_free());
}

/// Cannot be fixed: the article's reader overwrites the expiry of all readers with its own.
#[test]
fn trap_36_the_articles_reader_overwrites_ours() {
    let mut a = World::new();
    let reader = Token::random();
    assert!(a.reads(&reader, LEASE * 10) && article::read(&mut a.conn, NAMES, 5));
    assert!(a.left(READ) <= 5_000);
    assert!(!a.stops_reading(&reader), "the readers are no longer known");
    assert!(a.conn.exists::<_, bool>(READ).unwrap());
}

/// Cannot be fixed: without a release script, the article's programs delete the key.
#[test]
fn trap_36_the_articles_release_frees_every_reader() {
    let mut a = World::new();
    let [reader, writer] = tokens();
    assert!(a.reads(&reader, LEASE) && article::read(&mut a.conn, NAMES, 10));
    a.conn.del::<_, ()>(READ).unwrap();
    assert!(a.writes(&writer, LEASE) && !a.stops_reading(&reader));
}
