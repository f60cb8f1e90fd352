//! No token and no password in any text that may be logged.

use leasehold::{Error, Pool, acquire_lock_with_timeout};

use crate::common::{
    Server, start,
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
