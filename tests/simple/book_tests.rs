//! The tests of the book's repository, for its Python, Java, Go, Node and Ruby code, with our
//! functions.

use std::time::Duration;

use crate::common::{start, wait};
use leasehold::{
    acquire_lock, acquire_lock_with_timeout, list_item, purchase_item, purchase_item_with_lock,
    release_lock,
};
use redis::{Commands, Connection};

const SECOND: Duration = Duration::from_secs(1);

fn user_with(conn: &mut Connection, id: &str, funds: i64) {
    let () = conn.hset(format!("users:{id}"), "funds", funds).unwrap();
}

fn funds(conn: &mut Connection, id: &str) -> i64 {
    conn.hget(format!("users:{id}"), "funds").unwrap()
}

#[test]
fn chapter_6_distributed_locking() {
    let (_server, mut conn) = start();
    let lease = 3 * SECOND;

    assert!(
        acquire_lock_with_timeout(&mut conn, "testlock", SECOND, lease)
            .unwrap()
            .is_some()
    );
    let refused =
        acquire_lock_with_timeout(&mut conn, "testlock", Duration::from_millis(10), lease).unwrap();
    assert_eq!(refused, None, "while another one holds it");

    assert!(wait::comes_true(|| !conn
        .exists::<_, bool>("lock:testlock")
        .unwrap()));
    let second = acquire_lock_with_timeout(&mut conn, "testlock", SECOND, 10 * SECOND).unwrap();
    assert!(second.is_some(), "after it ended");
    assert!(release_lock(&mut conn, "testlock", &second.unwrap()).unwrap());
    assert!(
        acquire_lock_with_timeout(&mut conn, "testlock", SECOND, SECOND)
            .unwrap()
            .is_some()
    );
}

#[test]
fn chapter_11_distributed_locking() {
    let (_server, mut conn) = start();
    let held = acquire_lock_with_timeout(&mut conn, "lock", SECOND, 5 * SECOND).unwrap();
    let short = Duration::from_millis(20);
    assert_eq!(
        acquire_lock_with_timeout(&mut conn, "lock", short, 5 * SECOND).unwrap(),
        None
    );
    assert!(release_lock(&mut conn, "lock", &held.unwrap()).unwrap());
    assert!(acquire_lock(&mut conn, "lock", SECOND).unwrap().is_some());
}

#[test]
fn chapter_4_list_item() {
    let (_server, mut conn) = start();
    let () = conn.sadd("inventory:userX", "itemX").unwrap();

    assert!(
        list_item(&mut conn, "itemX", "userX", 10)
            .unwrap()
            .is_listed()
    );
    assert_eq!(
        conn.zrange("market:", 0, -1),
        Ok(vec!["itemX.userX".to_owned()])
    );
    assert_eq!(conn.scard("inventory:userX"), Ok(0));
}

#[test]
fn chapter_4_purchase_item() {
    let (_server, mut conn) = start();
    let () = conn.sadd("inventory:userX", "itemX").unwrap();
    user_with(&mut conn, "userX", 0);
    user_with(&mut conn, "userY", 125);
    assert!(
        list_item(&mut conn, "itemX", "userX", 10)
            .unwrap()
            .is_listed()
    );

    let too_dear = purchase_item(&mut conn, "userY", "itemX", "userX", 1000).unwrap();
    assert!(!too_dear.is_bought(), "only at its own price");
    let bought = purchase_item(&mut conn, "userY", "itemX", "userX", 10).unwrap();
    assert!(bought.is_bought());
    assert_eq!(conn.sismember("inventory:userY", "itemX"), Ok(true));
    assert_eq!(conn.zscore("market:", "itemX.userX"), Ok(None::<f64>));
    assert_eq!(
        (funds(&mut conn, "userX"), funds(&mut conn, "userY")),
        (10, 115)
    );
}

#[test]
fn chapter_11_market() {
    let (_server, mut conn) = start();
    let () = conn.sadd("inventory:1", "1").unwrap();
    user_with(&mut conn, "1", 0);
    user_with(&mut conn, "2", 5);

    assert!(
        !list_item(&mut conn, "2", "1", 10).unwrap().is_listed(),
        "not theirs"
    );
    assert!(list_item(&mut conn, "1", "1", 10).unwrap().is_listed());
    assert!(
        !purchase_item_with_lock(&mut conn, "2", "1", "1", None)
            .unwrap()
            .is_bought()
    );
    let () = conn.zadd("market:", "1.1", 4).unwrap();
    assert!(
        purchase_item_with_lock(&mut conn, "2", "1", "1", None)
            .unwrap()
            .is_bought()
    );
    assert_eq!((funds(&mut conn, "1"), funds(&mut conn, "2")), (4, 1));
}
