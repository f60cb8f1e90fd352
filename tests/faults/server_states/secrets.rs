//! No token and no password in any text that may be logged.

use std::fmt::Debug;

use leasehold::{Error, Pool, acquire_lock_with_timeout};

use crate::common::{
    Server,
    server::free_port,
    start,
    world::{self, LEASE, PASSWORD, WAIT},
};

#[test]
fn a_server_that_does_not_know_a_command_repeats_its_arguments() {
    for unknown in ["SET", "EVALSHA", "EVAL"] {
        let server = Server::start_with(&["--rename-command", unknown, ""]).unwrap();
        let mut conn = server.connection().unwrap();
        let mut hold = redis::cmd("SETEX");
        hold.arg("lock:held").arg(60).arg(world::TOKEN);
        hold.exec(&mut conn).unwrap();

        let error = acquire_lock_with_timeout(&mut conn, "held", WAIT, LEASE).unwrap_err();
        assert!(matches!(error, Error::Redis { .. }), "{error:?}");
        let error = anyhow::Error::from(error);
        assert!(format!("{error:#}").contains(unknown), "{error:#}");
        world::assert_tells_no_secret(&error);
    }
}

#[test]
fn a_commit_that_a_server_does_not_know_repeats_its_arguments() {
    let (_server, mut conn) = start();
    world::seed(&mut conn);
    let error = leasehold::commit_while_held::<()>(&mut conn, "held", &world::token(), |pipe| {
        pipe.cmd("NOSUCH")
            .arg("lock:held")
            .arg(world::TOKEN)
            .arg(PASSWORD);
    });
    let error = anyhow::Error::from(error.unwrap_err());
    assert!(format!("{error:#}").contains("NOSUCH"), "{error:#}");
    world::assert_tells_no_secret(&error);
}

#[test]
fn passwords_in_urls() {
    let server = Server::start_with(&["--requirepass", "another"]).unwrap();
    let (open, closed) = (server.port(), free_port().unwrap());
    let no_url = |rest: &str| Pool::connect(&format!("redis://app:{PASSWORD}@{rest}")).unwrap_err();
    tells_nothing(&no_url("127.0.0.1:none/"));
    tells_nothing(&no_url("127.0.0.1/no-number"));
    for port in [open, closed.number()] {
        let url = format!("redis://:{PASSWORD}@127.0.0.1:{port}/");
        let client = redis::Client::open(url).unwrap();
        let wait = std::time::Duration::from_millis(100);
        let pool = Pool::builder().get_timeout(wait).build(&client).unwrap();
        let error = pool.get().unwrap_err();
        assert!(matches!(error, Error::Pool { .. }), "{error:?}");
        tells_nothing(&error);
        tells_nothing(&pool);
    }
}

#[test]
fn types_with_a_token_do_not_print_it() {
    let server = Server::start().unwrap();
    let pool = Pool::connect(&server.url()).unwrap();
    let mut conn = pool.get().unwrap();
    let token = acquire_lock_with_timeout(&mut conn, "a", WAIT, LEASE)
        .unwrap()
        .unwrap();
    let text = format!("{token:?} {conn:?} {pool:?}");
    assert!(!text.contains(&token.to_string()), "{text}");
}

fn tells_nothing(shown: &impl Debug) {
    let text = format!("{shown:?} {shown:#?}");
    assert!(!text.contains(PASSWORD), "{text}");
}
