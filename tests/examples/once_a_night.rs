//! The README's nightly job.

use std::{process::Stdio, time::Duration};

use leasehold::{Error, Locks, Once};

use crate::common::{Server, example, wait};

#[test]
fn the_first_host_does_the_nightly_job() {
    let server = Server::start().unwrap();
    let said = [(); 3].map(|()| {
        let ended = example("once_a_night").arg(server.url()).output().unwrap();
        assert!(ended.status.success(), "{ended:?}");
        String::from_utf8(ended.stdout).unwrap()
    });
    assert!(said[0].contains("writing chapter 3") && said[0].contains("wrote 3 chapters"));
    assert!(
        said[1..]
            .iter()
            .all(|said| said.starts_with("the report was written ") && said.lines().count() == 1),
        "{said:?}"
    );
}

#[test]
fn a_waiting_host_does_the_job_after_the_first_fails() {
    let server = Server::start().unwrap();
    let mut watcher = server.connection().unwrap();
    let locks = Locks::connect(&server.url()).unwrap();
    let (period, now) = (Duration::from_mins(1), Duration::ZERO);
    let mut second = None;
    let first = locks.lock("report:nightly").run_once(period, now, |_| {
        let attempts = wait::calls(&mut watcher, "evalsha").unwrap();
        let mut program = example("once_a_night");
        let program = program.arg(server.url()).stdout(Stdio::piped());
        second = Some(program.spawn().unwrap());
        // It has read the last run and found the lock held before this host fails.
        let has_asked = || wait::calls(&mut watcher, "evalsha").unwrap() > attempts + 1;
        assert!(wait::comes_true(has_asked));
        Err::<(), _>(Error::other(anyhow::anyhow!("the disk is full")))
    });
    assert!(!matches!(first, Ok(Once::AlreadyRun(_))), "{first:?}");
    let ended = second.unwrap().wait_with_output().unwrap();
    let said = String::from_utf8(ended.stdout).unwrap();
    assert!(
        ended.status.success() && said.contains("wrote 3 chapters"),
        "{said}"
    );
}
