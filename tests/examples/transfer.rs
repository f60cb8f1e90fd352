//! Two processes move money, and one is killed: no money is lost, and no wait hangs.

use crate::common::{Server, example, wait::unless_halted};

#[test]
fn a_process_killed_in_a_transfer_loses_no_money_and_blocks_nobody() {
    unless_halted(|| {
        let server = Server::start().unwrap();
        let ended = example("transfer").arg(server.url()).output().unwrap();
        let said = String::from_utf8(ended.stdout.clone()).unwrap();
        assert!(ended.status.success(), "{ended:?}");
        let lines: Vec<_> = said.lines().collect();
        let [killed, moved, wait, accounts] = lines[..] else {
            panic!("{said}");
        };
        assert!(
            killed.starts_with("the second process was killed in a transfer from account "),
            "{said}"
        );
        assert!(
            moved.starts_with("the first process moved money ")
                && wait.starts_with("its longest wait was "),
            "{said}"
        );
        assert!(accounts.ends_with(": 400"), "{said}");
        let mut conn = server.connection().unwrap();
        let left: Vec<String> = redis::cmd("KEYS").arg("*").query(&mut conn).unwrap();
        assert_eq!(left, [""; 0]);
    });
}
