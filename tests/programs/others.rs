//! The examples that have no test of their own: they end well.

use crate::common::{Server, example};

#[test]
fn they_end_well() {
    let server = Server::start().unwrap();
    for name in ["book_lock", "event_histogram"] {
        let ended = example(name).arg(server.url()).output().unwrap();
        assert!(ended.status.success(), "{name}: {ended:?}");
    }
}
