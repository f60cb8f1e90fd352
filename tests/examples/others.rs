//! The example without a test of its own exits successfully.

use crate::common::{Server, example};

#[test]
fn each_example_succeeds() {
    let server = Server::start().unwrap();
    let ended = example("book_lock").arg(server.url()).output().unwrap();
    assert!(ended.status.success(), "{ended:?}");
}
