//! Sentinels that lag behind, contradict each other, name a replica or no master, or send nonsense.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU16, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use leasehold::{Error, Lease, Locks, Options, Pool, Severity, acquire_lock_with_timeout};
use redis::{Commands, RedisResult};

use crate::common::{
    Fake, LONG, MS, Proxy, SLACK, Server,
    access_list::rules,
    clients,
    hold::comes_true,
    sentinels::in_step,
    wait::{at_once, calls, tracked_keys, unless_halted},
};

/// The answers of a fake sentinel, which a test can change.
#[derive(Clone, Default)]
pub(crate) struct Said {
    port: Arc<AtomicU16>,
    epoch: Arc<AtomicU64>,
}

impl Said {
    pub(crate) fn now(&self, port: u16, epoch: u64) {
        self.port.store(port, Ordering::SeqCst);
        self.epoch.store(epoch, Ordering::SeqCst);
    }

    pub(crate) fn by_a_sentinel(&self) -> Fake {
        self.by_a_slow_sentinel(Duration::ZERO)
    }

    /// A sentinel that delays each answer.
    fn by_a_slow_sentinel(&self, delay: Duration) -> Fake {
        let said = self.clone();
        Fake::sentinel(move || {
            thread::sleep(delay);
            (
                said.port.load(Ordering::SeqCst),
                said.epoch.load(Ordering::SeqCst),
            )
        })
    }
}

/// Changes the answers of all.
fn all_say(said: &[Said], port: u16, epoch: u64) {
    for one in said {
        one.now(port, epoch);
    }
}

pub(crate) fn url(sentinels: &[&Fake]) -> String {
    let hosts: Vec<_> = (sentinels.iter())
        .map(|fake| format!("127.0.0.1:{}", fake.port()))
        .collect();
    format!("redis+sentinel://{}/mymaster", hosts.join(","))
}

/// Two masters, and sentinels that all name the first.
fn group<const N: usize>(epoch: u64) -> ([Server; 2], [Said; N], [Fake; N], String) {
    let masters = [(); 2].map(|()| Server::start().unwrap());
    let said = [(); N].map(|()| Said::default());
    all_say(&said, masters[0].port(), epoch);
    let fakes = said.each_ref().map(Said::by_a_sentinel);
    let urls = url(&fakes.each_ref());
    (masters, said, fakes, urls)
}

/// The servers that grant the next lock.
fn granted_on(locks: &Locks, name: &str, servers: &[&Server]) -> Vec<usize> {
    let _lease = locks.lock(name).acquire(LONG).unwrap();
    let has = |at: &usize| has_lock(servers[*at], name);
    (0..servers.len()).filter(has).collect()
}

fn has_lock(server: &Server, name: &str) -> bool {
    let mut conn = server.connection().unwrap();
    conn.exists(format!("lock:{name}")).unwrap()
}

fn text(error: Error) -> String {
    format!("{:#}", anyhow::Error::from(error))
}

/// It was still executing the call when this process learned of the other master.
#[test]
fn what_a_master_grants_after_it_was_replaced_does_not_count() {
    unless_halted(|| {
        let [old, new] = [(); 2].map(|()| Server::start().unwrap());
        let proxy = Proxy::in_front_of(&old).unwrap();
        let (said, port) = (Said::default(), new.port());
        said.now(proxy.port(), 1);
        let sentinel = said.by_a_sentinel();
        let pool = Pool::connect(&url(&[&sentinel])).unwrap();
        let locks = Locks::new(&pool).unwrap();
        drop(locks.lock("b").acquire(LONG).unwrap());
        proxy.at("EVALSHA").about("lock:a").run(move || {
            said.now(port, 2);
            let leads_there = |conn: &mut redis::Connection| {
                let told: String = redis::cmd("INFO").arg("server").query(conn).unwrap();
                told.contains(&format!("tcp_port:{port}\r"))
            };
            comes_true(|| pool.get().is_ok_and(|mut conn| leads_there(&mut conn)));
        });
        let lease = locks.lock("a").acquire(LONG).unwrap();
        assert!(proxy.happened());
        lease.verify().unwrap();
        assert!(has_lock(&new, "a"));
    });
}

/// The connection that it was lent was asked with a `PING` whether it lives, and the answer came
/// after the failover.
#[test]
fn a_shared_write_that_meets_a_replaced_master_goes_to_the_next() {
    at_once(["try_acquire", "renew", "release"], |call| {
        let [old, new] = [(); 2].map(|()| Server::start().unwrap());
        let proxy = Proxy::in_front_of(&old).unwrap();
        let (said, next) = (Said::default(), new.port());
        said.now(proxy.port(), 1);
        let sentinel = said.by_a_sentinel();
        let pool = Pool::builder().max_size(16).connect(&url(&[&sentinel]));
        let pool = pool.unwrap();
        let locks = Locks::new(&pool).unwrap();
        let held = locks.lock("held").acquire(LONG).unwrap();
        let [mut on_the_old, mut on_the_new] =
            [&old, &new].map(|server| server.connection().unwrap());
        // It knows the scripts.
        let there = crate::connect(&new.url()).lock("a").acquire(LONG).unwrap();
        there.renew(LONG).unwrap();
        there.release().unwrap();
        let lasts = on_the_old.pttl("lock:held").unwrap();
        let expiry = redis::SetOptions::default().with_expiration(redis::SetExpiry::PX(lasts));
        let token: String = on_the_old.get("lock:held").unwrap();
        let _: () = on_the_new.set_options("lock:held", token, expiry).unwrap();
        // Those of the watchdog and of the listener, which have their own questions.
        assert!(comes_true(|| tracked_keys(&mut on_the_old).unwrap() > 0));
        proxy.leave_alone(&clients::told_of_changes(&mut on_the_old));
        proxy.leave_alone(&clients::subscribers(&mut on_the_old));
        // A connection for each, of which one breaks: then the others are in doubt.
        let lent = MANY.map(|_| pool.get().unwrap());
        drop(lent);
        proxy.at("GET").about("broken").cut_before();
        let broken: RedisResult<Option<String>> = pool.get().unwrap().get("broken");
        assert!(broken.is_err() && proxy.happened());
        for nth in 1..=SHARED {
            let attempt = proxy.at("EVALSHA").about("slow").nth(nth);
            attempt.delay(2_000 * MS);
        }
        thread::scope(|scope| {
            for number in 0..SHARED {
                let lock = locks.lock(&format!("slow{number}"));
                scope.spawn(move || drop(lock.try_acquire()));
            }
            let are_under_way = || {
                on_the_old
                    .keys::<_, Vec<String>>("lock:slow*")
                    .unwrap()
                    .len()
                    == SHARED
            };
            assert!(comes_true(are_under_way));
            let pool = pool.clone();
            proxy.at("PING").run(move || {
                said.now(next, 2);
                assert!(comes_true(|| port(&pool) == next));
            });
            let sent = calls(&mut on_the_old, "evalsha").unwrap();
            let told = match call {
                "try_acquire" => {
                    (locks.lock("a").try_acquire()).map(|it| drop(it.map(Lease::detach)))
                }
                "renew" => held.renew(LONG),
                _ => held.release(),
            };
            // It was made before the failover, so the reply does not count and it is sent again.
            let may_be_unknown = call == "release";
            let is_told = matches!(told, Ok(()))
                || may_be_unknown && matches!(told, Err(Error::Unknown { .. }));
            assert!(is_told, "{call}: {told:?}");
            assert_eq!(calls(&mut on_the_old, "evalsha").unwrap(), sent, "{call}");
            let mut is_there = |name| on_the_new.exists::<_, bool>(name).unwrap();
            let is_granted = call == "try_acquire" && is_there("lock:a");
            assert!(
                is_granted || is_there("lock:held") == (call == "renew"),
                "{call}"
            );
            assert!(proxy.happened(), "{call}");
        });
    });
}

#[test]
fn a_smaller_config_epoch_is_never_believed() {
    unless_halted(check_that_a_smaller_config_epoch_is_never_believed);
}

fn check_that_a_smaller_config_epoch_is_never_believed() {
    let (old, new) = (Server::start().unwrap(), Server::start().unwrap());
    let (first, second) = (Said::default(), Said::default());
    first.now(new.port(), 7);
    second.now(old.port(), 6);
    let (one, other) = (first.by_a_sentinel(), second.by_a_sentinel());
    let locks = Locks::connect(&url(&[&one, &other])).unwrap();
    assert_eq!(granted_on(&locks, "a", &[&old, &new]), [1]);
    // Now both lag behind: no lock is granted rather than one by the old master.
    let holder = locks.lock("held").acquire(LONG).unwrap();
    first.now(old.port(), 6);
    assert!(comes_true(|| locks.lock("b").try_acquire().is_err()));
    let refused = locks.lock("b").acquire(1_500 * MS).unwrap_err();
    assert!(text(refused).contains("(config-epoch 6)"));
    assert!(holder.is_held());
    assert!(!has_lock(&old, "b"));
    // One names the new master again.
    second.now(new.port(), 7);
    assert_eq!(granted_on(&locks, "b", &[&old, &new]), [1]);
}

/// It keeps naming the old master until the cut is over. The others are asked in turn, and at
/// first.
#[test]
fn an_isolated_sentinel_keeps_nobody_on_the_old_master() {
    unless_halted(|| {
        let ([old, new], said, _fakes, urls) = group::<3>(1);
        let locks = Locks::connect(&urls).unwrap();
        assert_eq!(granted_on(&locks, "a", &[&old, &new]), [0]);
        let held = locks.lock("held").acquire(LONG).unwrap();
        let cut = Instant::now();
        all_say(&said[1..], new.port(), 2);
        assert!(comes_true(|| !held.is_held()));
        let told_after = cut.elapsed();
        assert!(told_after < 2_000 * MS + SLACK, "{told_after:?}");
        assert_eq!(granted_on(&locks, "b", &[&old, &new]), [1]);
        let fresh = Locks::connect(&urls).unwrap();
        assert_eq!(granted_on(&fresh, "c", &[&old, &new]), [1]);
    });
}

#[test]
fn a_sentinel_whose_answer_trickles_holds_nobody_up() {
    unless_halted(|| {
        let ([old, new], said, _fakes, urls) = group::<3>(1);
        let locks = Locks::connect(&urls).unwrap();
        let held = locks.lock("held").acquire(LONG).unwrap();
        said[2].now(0, 0);
        // By now each was asked.
        thread::sleep(3_500 * MS);
        assert!(held.is_held());
        all_say(&said[..2], new.port(), 2);
        let told = Instant::now();
        assert!(comes_true(|| !held.is_held()));
        let took = told.elapsed();
        assert!(took < 3_000 * MS + SLACK, "{took:?}");
        assert_eq!(granted_on(&locks, "b", &[&old, &new]), [1]);
        let fresh = Locks::connect(&urls).unwrap();
        assert_eq!(granted_on(&fresh, "c", &[&old, &new]), [1]);
    });
}

/// Without the announcement, the query each second would find it.
#[test]
fn an_announced_failover_is_noticed_at_once() {
    let servers = [Server::start().unwrap(), Server::start().unwrap()];
    let said = Said::default();
    said.now(servers[0].port(), 0);
    let sentinel = said.by_a_sentinel();
    let locks = Locks::connect(&url(&[&sentinel])).unwrap();
    let mut took = Vec::new();
    for epoch in 1..=3 {
        let next = &servers[usize::from(epoch % 2 == 1)];
        let held = locks.lock(&format!("held-{epoch}")).acquire(LONG).unwrap();
        assert!(comes_true(|| sentinel.subscribers() == 1));
        said.now(next.port(), epoch);
        let announced = Instant::now();
        sentinel.announce();
        assert!(comes_true(|| !held.is_held()));
        took.push(announced.elapsed());
    }
    let limit = 250 * MS + SLACK;
    assert!(took.iter().all(|took| *took < limit), "{took:?}");
}

/// That sentinel's next turn is in five seconds.
#[test]
fn a_failover_announced_before_the_subscription_is_noticed_at_once() {
    unless_halted(|| {
        let ([_old, new], said, fakes, _) = group::<5>(1);
        let locks = Locks::connect(&url(&fakes.each_ref())).unwrap();
        let held = locks.lock("a").acquire(LONG).unwrap();
        // The fifth was the last to be asked.
        said[4].now(new.port(), 2);
        let announced = Instant::now();
        assert!(comes_true(|| !held.is_held()));
        let told_after = announced.elapsed();
        assert_eq!(fakes[4].subscribers(), 1);
        assert!(told_after < 500 * MS + SLACK, "{told_after:?}");
    });
}

/// All of them are distant.
#[test]
fn slow_sentinels_are_asked_every_second() {
    let (old, new) = (Server::start().unwrap(), Server::start().unwrap());
    let said = [(); 3].map(|()| Said::default());
    all_say(&said, old.port(), 1);
    let far = (said.each_ref()).map(|said| said.by_a_slow_sentinel(100 * MS));
    let locks = Locks::connect(&url(&far.each_ref())).unwrap();
    let held = locks.lock("a").acquire(LONG).unwrap();
    assert!(comes_true(|| {
        far.iter().any(|sentinel| sentinel.subscribers() == 1)
    }));
    // There is no announcement.
    all_say(&said, new.port(), 2);
    let asked = Instant::now();
    assert!(comes_true(|| !held.is_held()));
    let told_after = asked.elapsed();
    assert!(told_after < 2_000 * MS + SLACK, "{told_after:?}");
}

/// Others learn of it later, and hold locks granted by the old master.
#[test]
fn a_new_master_grants_nothing_before_every_process_knows_it() {
    unless_halted(|| {
        let ([_old, new], said, sentinels, _) = group::<2>(1);
        let late = Locks::connect(&url(&[&sentinels[1]])).unwrap();
        let soon = Locks::connect(&url(&[&sentinels[0]])).unwrap();
        let held = late.lock("a").acquire(LONG).unwrap();
        let other = soon.lock("other").acquire(LONG).unwrap();
        assert!(comes_true(|| sentinels
            .iter()
            .all(|it| it.subscribers() == 1)));
        let tell = |at: usize| {
            said[at].now(new.port(), 2);
            sentinels[at].announce();
        };
        thread::scope(|scope| {
            let waits = scope.spawn(|| {
                let lease = soon.lock("a").acquire(LONG).unwrap();
                (Instant::now(), drop(lease)).0
            });
            let told = Instant::now();
            tell(0);
            assert!(comes_true(|| !other.is_held()));
            // The pool also waits.
            let tries = scope.spawn(|| {
                assert!(soon.lock("b").try_acquire().unwrap().is_some());
                Instant::now()
            });
            assert!(held.is_held());
            tell(1);
            assert!(comes_true(|| !held.is_held()));
            for granted in [waits, tries] {
                assert!(granted.join().unwrap() >= told + 500 * MS);
            }
        });
    });
}

/// It asked before the failover, and gets its connection after it.
#[test]
fn a_call_that_waited_for_a_connection_asks_a_new_master_no_sooner() {
    unless_halted(|| {
        let (old, new) = (Server::start().unwrap(), Server::start().unwrap());
        let said = Said::default();
        said.now(old.port(), 1);
        let sentinel = said.by_a_sentinel();
        let one = Pool::builder().max_size(1).get_timeout(LONG);
        let pool = one.connect(&url(&[&sentinel])).unwrap();
        let locks = Locks::new(&pool).unwrap();
        let other = locks.lock("other").acquire(LONG).unwrap();
        assert!(comes_true(|| sentinel.subscribers() == 1));
        let lent = pool.get().unwrap();
        thread::scope(|scope| {
            let waits = scope.spawn(|| {
                let lease = locks.lock("a").acquire(LONG).unwrap();
                (Instant::now(), drop(lease)).0
            });
            // Until it waits.
            thread::sleep(50 * MS);
            let told = Instant::now();
            said.now(new.port(), 2);
            sentinel.announce();
            assert!(comes_true(|| !other.is_held()));
            drop(lent);
            assert!(waits.join().unwrap() >= told + 500 * MS);
        });
    });
}

#[test]
fn before_a_new_master_grants_it_does_all_that_grants_nothing() {
    unless_halted(|| {
        let (old, new) = (Server::start().unwrap(), Server::start().unwrap());
        replicate(&new, &["127.0.0.1", &old.port().to_string()]);
        let said = Said::default();
        said.now(old.port(), 1);
        let sentinel = said.by_a_sentinel();
        let pool = Pool::connect(&url(&[&sentinel])).unwrap();
        let locks = Locks::new(&pool).unwrap();
        let held = locks.lock("held").acquire(LONG).unwrap();
        let kept = MANY.map(|n| locks.lock(&format!("kept-{n}")).acquire(LONG).unwrap());
        let mut conn = old.connection().unwrap();
        assert!(comes_true(|| in_step(&mut conn).unwrap() == 1));
        replicate(&new, &["NO", "ONE"]);
        let lost = locks.lock("lost").acquire(LONG).unwrap();
        assert!(comes_true(|| sentinel.subscribers() == 1));
        let told = Instant::now();
        said.now(new.port(), 2);
        sentinel.announce();
        assert!(comes_true(|| !lost.is_held()));
        thread::scope(|scope| {
            let tries = scope.spawn(|| {
                assert!(locks.lock("a").try_acquire().unwrap().is_some());
                Instant::now()
            });
            do_what_grants_nothing(&held, kept);
            let done = Instant::now();
            // On the connections that were opened meanwhile.
            let plain = acquire_lock_with_timeout(&mut pool.get().unwrap(), "b", LONG, LONG);
            assert!(plain.unwrap().is_some());
            let granted = Instant::now().min(tries.join().unwrap());
            assert!(done < granted && granted >= told + 500 * MS);
        });
    });
}

/// It knows no other master, but other processes may hold locks granted by one.
#[test]
fn a_process_started_after_a_failover_grants_nothing_before_every_process_knows_it() {
    let server = Server::start().unwrap();
    let port = server.port();
    let granted_after = |since: Duration| {
        let sentinel = Fake::sentinel_since(since, move || (port, 1));
        let locks = Locks::connect(&url(&[&sentinel])).unwrap();
        let started = Instant::now();
        let lease = locks.lock("a").acquire(LONG).unwrap();
        lease.release().unwrap();
        started.elapsed()
    };
    unless_halted(|| assert!(granted_after(Duration::from_secs(1)) < 250 * MS));
    let after = granted_after(Duration::ZERO);
    assert!(after >= 500 * MS, "{after:?}");
}

/// Its replicas may have left it for a master that six of seven sentinels do not know yet; the
/// seventh's turn is seconds away.
#[test]
fn all_sentinels_are_asked_about_a_master_with_too_few_replicas() {
    at_once([0, 1], |replicas| {
        unless_halted(|| {
            let ([old, new], said, _fakes, urls) = group::<7>(1);
            let pool = Pool::connect(&urls).unwrap();
            let locks = Locks::new(&pool).unwrap();
            assert_eq!(granted_on(&locks, "a", &[&old, &new]), [0]);
            let mut set = redis::cmd("CONFIG");
            let least = u32::from(replicas == 0);
            set.arg("SET").arg("min-replicas-to-write").arg(least);
            set.exec(&mut old.connection().unwrap()).unwrap();
            said[3].now(new.port(), 2);
            let asked = Instant::now();
            thread::scope(|scope| {
                let lock = locks.lock("b");
                let lock = lock.with(Options::new().replicas(replicas, 100 * MS));
                scope.spawn(move || lock.acquire(4_000 * MS).map(drop));
                assert!(comes_true(|| port(&pool) == new.port()));
                let after = asked.elapsed();
                assert!(after < 2_500 * MS + SLACK, "{replicas} {after:?}");
            });
        });
    });
}

/// Sentinels that were set up again count their epochs from 0.
#[test]
#[ignore = "seconds: cargo test --test many_servers -- --ignored --skip ::many_ --skip long::"]
fn recreated_sentinels_are_believed_after_ten_seconds_without_the_known_master() {
    let ([old, new], said, _fakes, urls) = group::<3>(7);
    let locks = Locks::connect(&urls).unwrap();
    assert_eq!(granted_on(&locks, "a", &[&old, &new]), [0]);
    let late = Locks::connect(&urls)
        .unwrap()
        .with(Options::new().lease(1_000 * MS));
    assert_eq!(granted_on(&late, "b", &[&old, &new]), [0]);
    // The same master in another epoch: new connections to it open at once.
    all_say(&said, old.port(), 0);
    thread::sleep(1_100 * MS);
    let mut kill = redis::cmd("CLIENT");
    kill.arg(&["KILL", "TYPE", "normal", "SKIPME", "yes"]);
    let killed: u64 = kill.query(&mut old.connection().unwrap()).unwrap();
    assert!(killed > 0);
    assert_eq!(granted_on(&locks, "c", &[&old, &new]), [0]);
    let held = locks.lock("held").acquire(LONG).unwrap();
    thread::sleep(12_000 * MS);
    // A process that has asked meanwhile finds the next failover of the new epochs as fast as any.
    let moved = Instant::now();
    all_say(&said, new.port(), 1);
    assert!(comes_true(|| !held.is_held()));
    let told_after = moved.elapsed();
    assert!(
        told_after < Duration::from_secs(2) + SLACK,
        "{told_after:?}"
    );
    assert_eq!(granted_on(&locks, "d", &[&old, &new]), [1]);
    // A process that has not asked for so long finds all of them changed.
    assert_eq!(granted_on(&late, "e", &[&old, &new]), [1]);
}

/// One of three names another server for the same epoch.
#[test]
fn one_against_two_does_not_win_whatever_the_order_in_the_url() {
    at_once([0, 1, 2], |wrong| {
        let (right, other) = (Server::start().unwrap(), Server::start().unwrap());
        let said = [(); 3].map(|()| Said::default());
        all_say(&said, right.port(), 0);
        let fakes = said.each_ref().map(Said::by_a_sentinel);
        let urls = url(&fakes.each_ref());
        let early = Locks::connect(&urls).unwrap();
        assert_eq!(granted_on(&early, "early", &[&right, &other]), [0]);
        said[wrong].now(other.port(), 0);
        let late = Locks::connect(&urls).unwrap();
        let held = early.lock("held").acquire(LONG).unwrap();
        let started = Instant::now();
        while started.elapsed() < 2_500 * MS {
            for locks in [&early, &late] {
                assert_eq!(granted_on(locks, "a", &[&right, &other]), [0], "{wrong}");
            }
            thread::sleep(100 * MS);
        }
        assert!(held.is_held(), "{wrong}");
        let probe = late.probe().unwrap();
        let found = probe.finding("sentinels").unwrap();
        let told = format!("2 name this master: 127.0.0.1:{} names", fakes[0].port());
        let wrong = format!(
            "127.0.0.1:{} names 127.0.0.1:{} ",
            fakes[wrong].port(),
            other.port()
        );
        assert_eq!(found.severity, Severity::Limits, "{found:?}");
        assert!(
            found.found.contains(&told) && found.found.contains(&wrong),
            "{found:?}"
        );
    });
}

/// More than go alone.
const MANY: [usize; 8] = [0, 1, 2, 3, 4, 5, 6, 7];
/// After so many under way, the next call is sent in a shared write.
const SHARED: usize = 6;

/// Each request of a holder that takes no lock, and many releases at once.
fn do_what_grants_nothing(held: &Lease, kept: [Lease; MANY.len()]) {
    held.verify().unwrap();
    held.renew(1_500 * MS).unwrap();
    held.commit(|pipe| _ = pipe.set("data", 1)).unwrap();
    thread::scope(|scope| {
        for lease in kept {
            scope.spawn(|| lease.release().unwrap());
        }
    });
}

/// `SENTINEL REMOVE` and `MONITOR`, on one sentinel after another: their epochs are 0 as before. If
/// just as many name the old server as the new one, none of them may grant.
#[test]
fn a_group_that_is_set_up_anew_at_the_same_epoch_is_followed() {
    at_once([1, 2, 3], |count| {
        let (old, new) = (Server::start().unwrap(), Server::start().unwrap());
        let said: Vec<_> = (0..count).map(|_| Said::default()).collect();
        all_say(&said, old.port(), 0);
        let fakes: Vec<_> = said.iter().map(Said::by_a_sentinel).collect();
        let urls = url(&fakes.iter().collect::<Vec<_>>());
        let lease = Options::new().lease(1_500 * MS);
        let locks = Locks::connect(&urls).unwrap().with(lease);
        let held = locks.lock("held").acquire(LONG).unwrap();
        let kept = MANY.map(|n| locks.lock(&format!("kept-{n}")).acquire(LONG).unwrap());
        said[0].now(new.port(), 0);
        if count == 2 {
            let is_refused = |locks: &Locks| {
                let refused = locks.lock("a").try_acquire().map(|it| it.is_some());
                let text = refused.map_or_else(text, |_| String::new());
                text.contains("do not agree on the master")
                    && [&old, &new]
                        .iter()
                        .all(|it| text.contains(&it.port().to_string()))
            };
            assert!(comes_true(|| is_refused(&locks)));
            // Naming one twice gives it no second vote.
            let twice = url(&[&fakes[0], &fakes[1], &fakes[0]]);
            for urls in [&urls, &twice] {
                assert!(is_refused(&Locks::connect(urls).unwrap()), "{urls}");
            }
            thread::sleep(2_000 * MS);
            assert!(held.is_held());
            do_what_grants_nothing(&held, kept);
            assert_eq!(locks.lock("b").force_release().unwrap().holders().len(), 0);
            assert!(is_refused(&locks));
            let mut conn = old.connection().unwrap();
            assert!(conn.exists::<_, bool>("lock:held").unwrap());
            // They agree again.
            said[0].now(old.port(), 0);
            assert!(comes_true(|| !is_refused(&locks)));
            assert_eq!(granted_on(&locks, "b", &[&old, &new]), [0]);
            assert!(held.is_held());
        }
        all_say(&said, new.port(), 0);
        let set_up = Instant::now();
        assert!(comes_true(|| !held.is_held()), "{count}");
        assert!(
            set_up.elapsed() < 3_000 * MS + SLACK,
            "{count} {:?}",
            set_up.elapsed()
        );
        for locks in [locks, Locks::connect(&urls).unwrap()] {
            assert_eq!(granted_on(&locks, "c", &[&old, &new]), [1], "{count}");
        }
    });
}

fn replicate(replica: &Server, of: &[&str]) {
    let mut command = redis::cmd("REPLICAOF");
    command
        .arg(of)
        .exec(&mut replica.connection().unwrap())
        .unwrap();
}

/// The ordinary partition: a holder stays with the old master, whose sentinels know nothing of the
/// new one. Another process and its sentinels are on the other side.
#[test]
fn a_master_that_is_cut_off_with_some_clients_stops_if_it_needs_a_replica() {
    at_once([0, 1], |needed| {
        let (old, new) = (Server::start().unwrap(), Server::start().unwrap());
        replicate(&new, &["127.0.0.1", &old.port().to_string()]);
        let mut conn = old.connection().unwrap();
        assert!(comes_true(|| in_step(&mut conn).unwrap() == 1));
        let mut set = redis::cmd("CONFIG");
        set.arg("SET").arg("min-replicas-to-write").arg(needed);
        set.exec(&mut conn).unwrap();
        let said = [(); 2].map(|()| Said::default());
        all_say(&said, old.port(), 1);
        let fakes = said.each_ref().map(Said::by_a_sentinel);
        let on_side = |fake| {
            let locks = Locks::connect(&url(&[fake])).unwrap();
            locks.with(Options::new().lease(2_000 * MS))
        };
        let held = on_side(&fakes[0]).lock("a").acquire(LONG).unwrap();
        replicate(&new, &["NO", "ONE"]);
        said[1].now(new.port(), 2);
        let second = on_side(&fakes[1]).lock("a").acquire(LONG).unwrap();
        // A renewal may still have come between the cut and the moment at which the old master
        // noticed it.
        let has_ended = comes_true(|| needed == 0 || !held.is_held());
        assert_eq!((has_ended, held.is_held()), (true, needed == 0));
        assert!(second.is_held());
    });
}

/// The commands in docs/guarantees.md beyond those of the locks themselves.
#[test]
fn the_access_list_of_a_server_with_sentinels_needs_its_row() {
    let server = Server::start().unwrap();
    let said = Said::default();
    said.now(server.port(), 1);
    let sentinel = said.by_a_sentinel();
    let url = url(&[&sentinel]).replace("://", "://app:secret@");
    let is_granted = |name: &str, needs: &[String], limit: Duration| {
        let mut user = redis::cmd("ACL");
        user.arg(&["SETUSER", "app", "reset", "on", ">secret"]);
        user.arg(needs)
            .exec(&mut server.connection().unwrap())
            .unwrap();
        let builder = Pool::builder().connect_timeout(limit).get_timeout(limit);
        let locks = Locks::new(&builder.connect(&url).unwrap()).unwrap();
        locks.lock(name).try_acquire().is_ok_and(|it| it.is_some())
    };
    let mut needs = rules("`mutex::try_acquire`,");
    assert!(!is_granted("app:a", &needs, 400 * MS));
    needs.extend(rules("each server that sentinels name"));
    assert!(is_granted("app:a", &needs, LONG));
}

#[test]
fn a_server_that_is_not_a_master_gets_no_connection() {
    let (master, replica) = (Server::start().unwrap(), Server::start().unwrap());
    replicate(&replica, &["127.0.0.1", &master.port().to_string()]);
    let said = Said::default();
    said.now(replica.port(), 1);
    let sentinel = said.by_a_sentinel();
    let builder = Pool::builder()
        .connect_timeout(400 * MS)
        .get_timeout(600 * MS);
    let pool = builder.connect(&url(&[&sentinel])).unwrap();
    // A server may be silent for a moment when it starts to replicate.
    assert!(comes_true(|| {
        let asked = Instant::now();
        let refused = text(pool.get().unwrap_err());
        assert!(asked.elapsed() < 600 * MS + SLACK);
        refused.contains("is a replica")
    }));
    // It becomes one during a wait.
    let locks = Locks::new(&pool).unwrap();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| locks.lock("a").acquire(LONG));
        thread::sleep(300 * MS);
        replicate(&replica, &["NO", "ONE"]);
        drop(waiter.join().unwrap().unwrap());
    });
}

#[test]
fn an_absurd_answer_of_a_sentinel_is_reported_and_opens_no_connection() {
    for (answer, why) in [
        ("*-1\r\n", "knows no master of this name"),
        ("-ERR No such master with that name\r\n", "No such master"),
        (
            "-NOAUTH Authentication required.\r\n",
            "Authentication required",
        ),
        ("*2\r\n$1\r\nx\r\n$1\r\ny\r\n", ""),
        ("+OK\r\n", ""),
        ("?what\r\n", ""),
        (":1\r\n", ""),
    ] {
        let sentinel = Fake::saying(|_, _| answer.as_bytes().to_vec());
        let pool = Pool::connect(&url(&[&sentinel])).unwrap();
        let asked = Instant::now();
        let refused = text(pool.get().unwrap_err());
        assert!(
            refused.contains("no sentinel of 1 has named") && refused.contains(why),
            "{answer} {refused}"
        );
        assert!(
            asked.elapsed() < 1_000 * MS + SLACK,
            "{:?}",
            asked.elapsed()
        );
    }
}

/// The URL is wrong only if all of them refuse.
#[test]
fn a_refusal_of_some_does_not_end_a_wait_while_others_are_unreachable() {
    let refuses = Fake::saying(|_, _| b"-NOAUTH Authentication required.\r\n".to_vec());
    let (at, nobody) = (format!("127.0.0.1:{}", refuses.port()), "127.0.0.1:1");
    for (url, ends_at_once) in [
        (format!("redis+sentinel://{at}/m"), true),
        (format!("redis+sentinel://{nobody},{at}/m"), false),
        (format!("redis+sentinel://{at},{nobody}/m"), false),
        (format!("redis+cluster://{at}"), true),
        (format!("redis+cluster://{nobody},{at}"), false),
        (format!("redis+cluster://{at},{nobody}"), false),
    ] {
        let wait = if ends_at_once { 10_000 } else { 300 } * MS;
        let asked = Instant::now();
        let error = Locks::connect(&url)
            .and_then(|locks| locks.lock("a").acquire(wait))
            .map(drop)
            .unwrap_err();
        let waited = asked.elapsed();
        assert_eq!(
            matches!(error, Error::Invalid { .. }),
            ends_at_once,
            "{url}: {error}"
        );
        assert_eq!(waited < wait, ends_at_once, "{url}: {error}");
    }
}

/// Each silent one takes its share, and together no more than the call's limit.
#[test]
fn silent_sentinels_stay_within_the_calls_deadline() {
    let silent = [(); 3].map(|()| Fake::saying(|_, _| Vec::new()));
    let urls = url(&[&silent[0], &silent[1], &silent[2]]);
    let builder = Pool::builder().get_timeout(400 * MS);
    let pool = builder.connect(&urls).unwrap();
    let asked = Instant::now();
    assert!(matches!(pool.get(), Err(Error::Pool { .. })));
    assert!(asked.elapsed() < 400 * MS + SLACK);
    let locks = Locks::new(&pool).unwrap().with(Options::new());
    let asked = Instant::now();
    assert!(matches!(
        locks.lock("a").acquire(700 * MS),
        Err(Error::Pool { .. })
    ));
    // One more attempt to connect is in progress at the deadline.
    assert!(
        asked.elapsed() < 1_100 * MS + SLACK,
        "{:?}",
        asked.elapsed()
    );
}

/// The port of the pool's server.
fn port(pool: &Pool) -> u16 {
    let info: String = redis::cmd("INFO")
        .arg("server")
        .query(&mut *pool.get().unwrap())
        .unwrap();
    let port = info.lines().find_map(|line| line.strip_prefix("tcp_port:"));
    port.unwrap().parse().unwrap()
}
