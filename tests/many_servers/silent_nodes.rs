//! A master that was silent while it was replaced.

use std::{thread, time::Duration};

use leasehold::{Error, Nodes, Pool, acquire_lock_with_timeout, recipes::Hold};

use crate::common::{Cluster, MS, hold::comes_true};

/// A plain function sends its command once. A master that was silent for long may grant it although
/// it was replaced. With a required replica the call is refused, because the returning master has
/// none.
#[test]
#[ignore = "seconds: cargo test --test many_servers -- --ignored --skip ::many_ --skip long::"]
fn a_required_replica_refuses_a_silent_masters_grant_to_a_plain_function() {
    let cluster = Cluster::planned(Duration::from_millis(500), false).unwrap();
    let tag = cluster.tag(0, "late").unwrap();
    let name = &format!("{{{tag}}}");
    let patient = Pool::builder().io_timeout(Duration::from_secs(30));
    let patient = patient.connect_nodes(&cluster.url()).unwrap();
    let mut conn = patient.get_for(name).unwrap();
    let lease = Duration::from_mins(1);
    cluster.nodes[0].freeze().unwrap();
    thread::scope(|scope| {
        let late = scope.spawn(|| {
            let token = acquire_lock_with_timeout(&mut conn, name, MS, lease)?;
            let token = token.unwrap();
            let hold = Hold::mutex(name, &token)?;
            Ok::<_, Error>(hold.confirm_by_replicas(&mut conn, 1, 100 * MS))
        });
        cluster.wait_until_master(3).unwrap();
        let others = Nodes::connect(&cluster.url()).unwrap();
        let acquire =
            |conn: &mut redis::Connection| acquire_lock_with_timeout(conn, name, MS, lease);
        let granted = comes_true(|| matches!(others.run(name, acquire), Ok(Some(_))));
        cluster.nodes[0].thaw().unwrap();
        assert!(granted);
        let confirmed = late.join().unwrap();
        println!("{confirmed:?}");
        assert!(!matches!(confirmed, Ok(Ok(()))), "two hold the lock");
    });
}
