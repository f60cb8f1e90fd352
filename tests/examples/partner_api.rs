//! The example in which twenty threads of two processes share three permits.

use crate::common::{Server, example, examples::printed};

#[test]
fn the_permits_of_a_killed_process_come_back_with_its_lease() {
    let server = Server::start().unwrap();
    let said = printed(|| {
        let mut program = example("partner_api");
        program.arg(server.url());
        program
    });
    assert!(
        said.lines().all(|line| line.chars().count() <= 100),
        "{said}"
    );
    // B is killed when it holds a permit, for which it may have to wait.
    assert!(said.lines().count() < 100, "{said}");
    for words in ["B is killed", "reused after", "never more than 3 held"] {
        assert!(said.contains(words), "{said}");
    }
    let mut conn = server.connection().unwrap();
    let left: Vec<String> = redis::cmd("KEYS").arg("*").query(&mut conn).unwrap();
    assert_eq!(left, [""; 0]);
}
