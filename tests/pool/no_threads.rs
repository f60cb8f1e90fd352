//! A process in which no thread can be started.

use std::{env, process::Command};

use leasehold::{Error, Nodes, Pool, redis::Client};

/// The stack size of new threads, which the standard library reads from here, exceeds all memory.
const NO_STACK: (&str, &str) = ("RUST_MIN_STACK", "70000000000000");

#[test]
fn it_returns_an_error_and_does_not_panic() {
    let said = Command::new(env::current_exe().unwrap())
        .args(["no_threads::no_pool_is_built", "--exact", "--ignored"])
        .arg("--test-threads=1")
        .env(NO_STACK.0, NO_STACK.1)
        .output()
        .unwrap();
    let out = String::from_utf8_lossy(&said.stdout);
    assert!(out.contains("1 passed"), "{said:?}");
}

#[test]
#[ignore = "run by another test, in its own process"]
fn no_pool_is_built() {
    let url = "redis://127.0.0.1:1/";
    let client = Client::open(url).unwrap();
    let built = [
        Pool::builder().build(&client).map(drop),
        Pool::connect(url).map(drop),
        Pool::connect("redis+sentinel://127.0.0.1:1/mymaster").map(drop),
    ];
    for built in built {
        assert!(matches!(built, Err(Error::Thread { .. })), "{built:?}");
    }
    drop(Nodes::connect("redis+cluster://127.0.0.1:1").unwrap());
}
