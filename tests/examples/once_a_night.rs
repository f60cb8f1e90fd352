//! The README's nightly job.

use crate::common::{Server, example};

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
