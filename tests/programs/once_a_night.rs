//! The program of the README that is done once a night.

use crate::common::{Server, example};

#[test]
fn the_job_of_every_night_is_done_by_the_first_who_starts_it() {
    let server = Server::start().unwrap();
    let said = [(); 3].map(|()| {
        let ended = example("once_a_night").arg(server.url()).output().unwrap();
        assert!(ended.status.success(), "{ended:?}");
        String::from_utf8(ended.stdout).unwrap()
    });
    assert!(said[0].contains("writing chapter 3") && said[0].contains("Some(3) chapters"));
    assert!(
        said[1..]
            .iter()
            .all(|said| said.starts_with("it was written ") && said.lines().count() == 1),
        "{said:?}"
    );
}
