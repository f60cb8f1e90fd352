//! The smallest access list that docs/guarantees.md names for each recipe is enough.

use std::{fs, path::Path, time::Duration};

use crate::common::Server;
use leasehold::{
    Owner, Pool, Result, Token, Watchdog,
    recipes::{
        mutex::{self, End},
        read_write::{self, ReadHold, WriteHold, one_hash, two_key},
        reentrant,
    },
};
use redis::Connection;

const NAME: &str = "app:a";
const LEASE: Duration = Duration::from_secs(10);
const LONGER: Duration = Duration::from_secs(20);

/// The rules of the row that is for this.
fn rules(what: &str) -> Vec<String> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/guarantees.md");
    let text = fs::read_to_string(page).unwrap();
    let row = text
        .lines()
        .find(|line| line.starts_with(&format!("| {what}")));
    let words = row
        .unwrap_or_default()
        .rsplit('|')
        .nth(1)
        .unwrap_or_default();
    words
        .split([' ', '`'])
        .flat_map(|word| match word {
            "KEYS" => vec!["~lock:app:*"],
            "BOTH" => vec!["~lock:app:*", "~{lock:app:*}:lease"],
            word if word.starts_with(['~', '+']) => vec![word],
            _ => Vec::new(),
        })
        .map(str::to_owned)
        .collect()
}

struct Bench {
    server: Server,
    operator: Connection,
}

impl Bench {
    fn url(&mut self, rules: &[String]) -> String {
        redis::cmd("ACL")
            .arg(&["SETUSER", "app", "reset", "on", ">secret"])
            .arg(rules)
            .exec(&mut self.operator)
            .unwrap();
        format!("redis://app:secret@127.0.0.1:{}/", self.server.port())
    }

    /// What a user with these rules may do, on a server that was prepared by one who may do everything.
    fn assert_enough(
        &mut self,
        rules: &[String],
        prepare: impl Fn(&mut Connection),
        run: impl Fn(&mut Connection) -> Result<()>,
    ) {
        redis::cmd("FLUSHALL").exec(&mut self.operator).unwrap();
        prepare(&mut self.operator);
        let client = redis::Client::open(self.url(rules)).unwrap();
        run(&mut client.get_connection().unwrap()).unwrap();
    }
}

#[test]
fn what_the_table_names_is_enough() {
    let server = Server::start().unwrap();
    let operator = server.connection().unwrap();
    let mut bench = Bench { server, operator };
    let [token, other] = [Token::random(), Token::random()];
    let owner = Owner::current_thread();
    let none = |_: &mut Connection| {};
    let lock = |conn: &mut Connection| {
        mutex::try_acquire(conn, NAME, &token, End::After(LEASE)).unwrap();
    };
    let enter = |conn: &mut Connection| {
        reentrant::try_acquire(conn, NAME, &owner, &token, LEASE).unwrap();
    };

    bench.assert_enough(&rules("`mutex::try_acquire`,"), none, |conn| {
        for token in [&token, &token, &other] {
            mutex::acquire(conn, NAME, token, Duration::ZERO, End::After(LEASE))?;
        }
        Ok(())
    });
    bench.assert_enough(&rules("`mutex::try_acquire_unfenced`"), none, |conn| {
        mutex::try_acquire_unfenced(conn, NAME, &token, LEASE).map(|_| ())
    });
    bench.assert_enough(&rules("`mutex::renew`"), lock, |conn| {
        assert!(mutex::renew(conn, NAME, &token, LONGER)?);
        Ok(())
    });
    bench.assert_enough(&rules("`mutex::release`"), lock, |conn| {
        assert!(mutex::release(conn, NAME, &token)?);
        Ok(())
    });
    bench.assert_enough(&rules("`reentrant::try_acquire`"), none, |conn| {
        for token in [&token, &other, &token] {
            reentrant::acquire(conn, NAME, &owner, token, Duration::ZERO, LEASE)?;
        }
        Ok(())
    });
    bench.assert_enough(&rules("`reentrant::renew`"), enter, |conn| {
        assert!(reentrant::renew(conn, NAME, &owner, LONGER)?);
        Ok(())
    });
    bench.assert_enough(&rules("`reentrant::release`"), enter, |conn| {
        reentrant::release(conn, NAME, &owner, &other)?;
        let freed = reentrant::release(conn, NAME, &owner, &token)?;
        assert_eq!(freed, reentrant::Release::Freed);
        Ok(())
    });
    // Taken twice by a program that writes no companion.
    let bare = |conn: &mut Connection| {
        redis::cmd("HSET")
            .arg(&["lock:app:a", owner.as_str(), "2"])
            .exec(conn)
            .unwrap();
    };
    bench.assert_enough(&rules("`reentrant::release`"), bare, |conn| {
        let held = reentrant::release(conn, NAME, &owner, &token)?;
        assert_eq!(held, reentrant::Release::StillHeld { count: 1 });
        Ok(())
    });
    bench.assert_enough(&rules("`reentrant::holds`"), enter, |conn| {
        assert_eq!(reentrant::holds(conn, NAME, &owner)?, 1);
        Ok(())
    });
}

#[test]
fn what_the_table_names_for_readers_and_writers_is_enough() {
    let server = Server::start().unwrap();
    let operator = server.connection().unwrap();
    let mut bench = Bench { server, operator };
    let [token, other] = [Token::random(), Token::random()];
    let none = |_: &mut Connection| {};

    let reader = rules("a reader of `read_write`");
    bench.assert_enough(&reader, none, |conn| {
        assert!(read_write::try_acquire_read(conn, NAME, &token, LEASE)?);
        assert!(read_write::try_acquire_read(conn, NAME, &other, LONGER)?);
        assert!(read_write::release_read(conn, NAME, &token)?);
        assert!(read_write::release_read(conn, NAME, &other)?);
        Ok(())
    });
    let mut writer = [reader, rules("a writer of `read_write`")].concat();
    writer.push("~{lock:app:*}:lease".into());
    let short = Duration::from_millis(20);
    bench.assert_enough(&writer, none, |conn| {
        assert!(read_write::try_acquire_write(conn, NAME, &token, LEASE)?.is_some());
        assert!(read_write::acquire_write(conn, NAME, &other, short, LEASE)?.is_none());
        assert!(read_write::release_write(conn, NAME, &token)?);
        Ok(())
    });
    let renews = rules("`renew_read`");
    let renews_write = [renews.clone(), vec!["~{lock:app:*}:lease".into()]].concat();
    let pool = Pool::connect(&bench.url(&renews_write)).unwrap();
    let watchdog = Watchdog::start(&pool).unwrap();
    let read = |conn: &mut Connection| {
        assert!(read_write::try_acquire_read(conn, NAME, &token, LEASE).unwrap());
    };
    bench.assert_enough(&renews, read, |conn| {
        assert!(read_write::renew_read(conn, NAME, &token, LONGER)?);
        let hold = ReadHold::new(NAME, &token)?;
        assert!(watchdog.keep(&hold, LONGER)?.is_held());
        Ok(())
    });
    let write = |conn: &mut Connection| {
        let granted = read_write::try_acquire_write(conn, NAME, &token, LEASE).unwrap();
        assert!(granted.is_some());
    };
    bench.assert_enough(&renews_write, write, |conn| {
        assert!(read_write::renew_write(conn, NAME, &token, LONGER)?);
        let hold = WriteHold::new(NAME, &token)?;
        assert!(watchdog.keep(&hold, LONGER)?.is_held());
        Ok(())
    });

    let keys = two_key::Keys::new("readKey", "writeKey").unwrap();
    bench.assert_enough(&rules("a reader of `two_key`"), none, |conn| {
        assert!(two_key::try_acquire_read(conn, &keys, &token, LEASE)?);
        assert!(two_key::try_acquire_read(conn, &keys, &other, LEASE)?);
        assert!(two_key::release_read(conn, &keys, &token)?);
        assert!(two_key::release_read(conn, &keys, &other)?);
        Ok(())
    });
    bench.assert_enough(&rules("a writer of `two_key`"), none, |conn| {
        assert!(two_key::try_acquire_write(conn, &keys, &token, LEASE)?);
        assert!(two_key::try_acquire_write(conn, &keys, &token, LONGER)?);
        assert!(two_key::release_write(conn, &keys, &token)?);
        Ok(())
    });
    let leases = one_hash::Leases::default();
    bench.assert_enough(&rules("`one_hash`"), none, |conn| {
        assert!(one_hash::try_acquire_read(
            conn, "hashKey", &token, &leases
        )?);
        assert!(one_hash::release_read(conn, "hashKey", &token, &leases)?);
        assert!(one_hash::try_acquire_write(
            conn, "hashKey", &token, &leases
        )?);
        assert!(one_hash::release_write(conn, "hashKey", &token, &leases)?);
        Ok(())
    });
}
