//! The README's program that moves money under a lock.

use redis::Commands;

use crate::common::{Server, example};

#[test]
fn money_moves_only_while_the_balance_suffices() {
    let server = Server::start().unwrap();
    let mut conn = server.connection().unwrap();
    let said = || {
        let ended = example("wallet").arg(server.url()).output().unwrap();
        assert!(ended.status.success(), "{ended:?}");
        String::from_utf8(ended.stdout).unwrap()
    };
    assert_eq!(said(), "paid: false\n");
    let () = conn.set("wallet:7", 7).unwrap();
    assert_eq!([said(), said()], ["paid: true\n", "paid: false\n"]);
    let left: (i64, i64) = conn.mget(&["wallet:7", "wallet:8"]).unwrap();
    assert_eq!(left, (2, 5));
    assert!(!conn.exists::<_, bool>("lock:order:4711").unwrap());
}
