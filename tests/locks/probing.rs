//! `Locks::probe` on different servers.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant, SystemTime},
};

use leasehold::{Error, Finding, Locks, Options, Pool, Probe, Severity};

use crate::common::{
    Fake, MS, SLACK, Server, clients::count, fake::TRICKLE, hold::comes_true, monitor::Monitor,
    wait::at_once,
};

const TOPICS: [&str; 11] = [
    "server",
    "topology",
    "scripts",
    "wake-ups",
    "replicas",
    "memory",
    "persistence",
    "clock",
    "round trip",
    "keys",
    "commands",
];
const TOO_LATE_FOR_TIME: &[u8] = b"-ERR Error running script (call to f_a): @user_script:1: \
    @user_script: 1: Write commands not allowed after non deterministic commands.\r\n";

fn probe(url: &str) -> Probe {
    Locks::connect(url).unwrap().probe().unwrap()
}

fn started_with(args: &[&str]) -> Probe {
    probe(&Server::start_with(args).unwrap().url())
}

fn severity(probe: &Probe, topic: &str) -> Severity {
    probe.finding(topic).unwrap().severity
}

/// Asserts the severity, and that these words are in the finding or its consequence.
#[track_caller]
fn says(probe: &Probe, topic: &str, severity: Severity, words: &str) {
    let found = probe.finding(topic).unwrap();
    assert_eq!(found.severity, severity, "{found:?}");
    let text = format!("{}: {}", found.found, found.consequence);
    assert!(text.contains(words), "{text}");
}

/// A fake server on which locks work, except for the commands that `other` answers. It sends no
/// notifications.
fn server_but_for(other: impl Fn(&str, usize) -> Option<Vec<u8>> + Send + 'static) -> Fake {
    Fake::saying(move |command, before| {
        if let Some(answer) = other(command, before) {
            return answer;
        }
        let answer: &[u8] = match (command, before) {
            ("INFO", _) => b"$34\r\nredis_version:7.9.0\r\nrole:master\r\n\r\n",
            ("HELLO", _) => b"-ERR unknown command 'HELLO'\r\n",
            ("CONFIG", _) => b"*0\r\n",
            ("EVAL", _) => b":1\r\n",
            ("EVALSHA", _) => b"-NOSCRIPT No matching script\r\n",
            ("CLIENT", 0) => b":7\r\n",
            ("SUBSCRIBE", _) => b"*3\r\n$9\r\nsubscribe\r\n$20\r\n__redis__:invalidate\r\n:1\r\n",
            ("TIME", _) => b"*2\r\n$1\r\n1\r\n$1\r\n1\r\n",
            ("PTTL" | "WAIT" | "DEL", _) => b":0\r\n",
            _ => b"+OK\r\n",
        };
        answer.to_vec()
    })
}

fn bulk(text: &str) -> Vec<u8> {
    format!("${}\r\n{text}\r\n", text.len()).into_bytes()
}

fn probe_hurried(fake: &Fake) -> Probe {
    let builder = Pool::builder().io_timeout(300 * MS);
    let pool = builder
        .connect(&format!("redis://127.0.0.1:{}/", fake.port()))
        .unwrap();
    Locks::new(&pool).unwrap().probe().unwrap()
}

#[test]
fn a_server_without_gaps() {
    let server = Server::start().unwrap();
    let probe = probe(&server.url());
    let topics: Vec<_> = probe.findings().iter().map(|it| it.topic).collect();
    assert_eq!(topics, TOPICS);
    assert!(probe.locks_work());
    for topic in TOPICS {
        let expected = match topic {
            "replicas" | "persistence" => Severity::Limits,
            _ => Severity::Good,
        };
        assert_eq!(severity(&probe, topic), expected, "{probe}");
    }
    let found = &probe.finding("server").unwrap().found;
    let address = format!(" at 127.0.0.1:{}", server.port());
    assert!(found.ends_with(&address), "{found}");
    assert!(!found.contains("redis at"), "{found}");
    says(&probe, "wake-ups", Severity::Good, "a message arrived");
    let table = probe.to_string();
    assert!(
        table.ends_with("Locks work here, with 2 limits."),
        "{table}"
    );
    assert!(
        table
            .lines()
            .any(|line| line.starts_with("good      scripts      ")),
        "{table}"
    );
}

#[test]
fn it_writes_one_key_under_the_prefix_and_removes_it() {
    let server = Server::start().unwrap();
    let mut monitor = Monitor::start(&server).unwrap();
    let mut admin = server.connection().unwrap();
    let before = count(&mut admin);
    let locks = Locks::connect(&server.url()).unwrap();
    locks.with(Options::new().prefix("job:")).probe().unwrap();
    assert!(comes_true(|| count(&mut admin) == before));
    assert_eq!(redis::cmd("DBSIZE").query(&mut admin), Ok(0));
    let commands = monitor.commands().unwrap();
    let sets: Vec<_> = commands
        .iter()
        .filter(|it| it.starts_with("SET "))
        .collect();
    assert!(!sets.is_empty());
    for set in sets {
        assert!(
            set.starts_with("SET job:probe:")
                && (set.ends_with(" PX 5000") || set.ends_with(" PX 0")),
            "{set}"
        );
    }
    assert!(commands.len() < 80, "{}", commands.len());
}

#[test]
fn an_invalid_prefix_is_refused() {
    let server = Server::start().unwrap();
    let locks = Locks::connect(&server.url()).unwrap();
    let error = locks
        .with(Options::new().prefix("{a}"))
        .probe()
        .unwrap_err();
    assert!(
        matches!(
            error,
            Error::Invalid {
                argument: "prefix",
                ..
            }
        ),
        "{error:?}"
    );
}

#[test]
fn renamed_commands() {
    let away = |names: &[&str]| {
        let args: Vec<_> = names
            .iter()
            .flat_map(|name| ["--rename-command", name, ""])
            .collect();
        started_with(&args)
    };
    let probe = away(&["CLIENT", "SCRIPT", "CONFIG"]);
    assert!(probe.locks_work(), "{probe}");
    says(&probe, "wake-ups", Severity::Limits, "unknown command");
    says(&probe, "wake-ups", Severity::Limits, "every 1 to 10 ms");
    says(
        &probe,
        "persistence",
        Severity::Limits,
        "no append-only file",
    );
    says(&probe, "memory", Severity::Good, "noeviction");

    let probe = away(&["WAIT"]);
    assert!(probe.locks_work(), "{probe}");
    says(&probe, "replicas", Severity::Limits, "unknown command");
    says(
        &probe,
        "commands",
        Severity::Limits,
        "no wait for replicas (wait)",
    );

    for script in ["EVAL", "EVALSHA"] {
        let probe = away(&[script]);
        assert!(!probe.locks_work());
        says(&probe, "scripts", Severity::Fails, "unknown command");
        assert!(probe.to_string().ends_with("Locks do not work here."));
    }
    let probe = away(&["HGET"]);
    assert!(!probe.locks_work());
    says(&probe, "commands", Severity::Fails, "no lock (hget)");
    let probe = away(&["ZADD"]);
    assert!(probe.locks_work());
    says(
        &probe,
        "commands",
        Severity::Limits,
        "Without them: no semaphore (zadd).",
    );
}

#[test]
fn eviction_and_persistence() {
    let full = ["--maxmemory", "100mb", "--maxmemory-policy"];
    let of = |policy| started_with(&[&full[..], &[policy]].concat());
    says(
        &of("allkeys-lru"),
        "memory",
        Severity::Limits,
        "may evict a held lock",
    );
    says(
        &of("volatile-ttl"),
        "memory",
        Severity::Limits,
        "may evict a held lock",
    );
    says(&of("noeviction"), "memory", Severity::Good, "noeviction");
    let probe = started_with(&["--maxmemory-policy", "allkeys-lru"]);
    says(&probe, "memory", Severity::Good, "while maxmemory is 0");

    let append = |fsync| started_with(&["--appendonly", "yes", "--appendfsync", fsync]);
    says(
        &append("always"),
        "persistence",
        Severity::Good,
        "keeps all locks",
    );
    says(
        &append("everysec"),
        "persistence",
        Severity::Limits,
        "the last seconds",
    );
    says(
        &append("no"),
        "persistence",
        Severity::Limits,
        "append-only file",
    );
    says(
        &started_with(&[]),
        "persistence",
        Severity::Limits,
        "since the last snapshot",
    );
}

/// Topics that need a write stay open, and are not reported as limits.
#[test]
fn a_server_that_takes_no_writes_now() {
    for settings in [["--maxmemory", "1"], ["--min-replicas-to-write", "1"]] {
        let probe = started_with(&settings);
        assert!(!probe.locks_work(), "{settings:?}: {probe}");
        says(&probe, "scripts", Severity::Fails, "none works");
        says(&probe, "commands", Severity::Fails, "until the server");
        says(&probe, "wake-ups", Severity::NotTold, "probe again");
        assert!(!probe.to_string().contains("user_script"), "{probe}");
    }
    let loading = b"-LOADING Redis is loading the dataset in memory\r\n";
    let fake = server_but_for(|command, _| {
        let is_refused = matches!(command, "EVAL" | "EVALSHA" | "PTTL" | "SET" | "WAIT");
        is_refused.then(|| loading.to_vec())
    });
    let probe = probe_hurried(&fake);
    says(&probe, "scripts", Severity::Fails, "LOADING");
    for topic in ["wake-ups", "replicas"] {
        says(&probe, topic, Severity::NotTold, "LOADING");
    }
}

#[test]
fn a_replica_and_its_master() {
    let (master, replica) = (Server::start().unwrap(), Server::start().unwrap());
    let mut follow = redis::cmd("REPLICAOF");
    follow.arg("127.0.0.1").arg(master.port());
    follow.exec(&mut replica.connection().unwrap()).unwrap();
    let info = |server: &Server| {
        let mut info = redis::cmd("INFO");
        let info: String = info
            .arg("replication")
            .query(&mut server.connection().unwrap())
            .unwrap();
        info
    };
    assert!(comes_true(
        || info(&replica).contains("master_link_status:up")
    ));
    assert!(comes_true(|| info(&master).contains("state=online")));
    let of_replica = probe(&replica.url());
    assert!(!of_replica.locks_work());
    says(&of_replica, "topology", Severity::Fails, "a replica");
    says(&of_replica, "scripts", Severity::Fails, "READONLY");
    says(&of_replica, "replicas", Severity::NotTold, "probe again");
    let of_master = probe(&master.url());
    assert!(of_master.locks_work());
    let confirms = |it: &Finding| it.found.contains("1 confirmed");
    assert!(comes_true(|| {
        confirms(probe(&master.url()).finding("replicas").unwrap())
    }));
    replica.freeze().unwrap();
    says(
        &probe(&master.url()),
        "replicas",
        Severity::Limits,
        "0 confirmed",
    );
    replica.thaw().unwrap();
}

#[test]
fn no_password_and_no_user_is_printed() {
    let server = Server::start_with(&["--requirepass", "sEcret-1"]).unwrap();
    let conn = &mut redis::Client::open(format!("redis://:sEcret-1@127.0.0.1:{}", server.port()))
        .unwrap()
        .get_connection()
        .unwrap();
    redis::cmd("ACL")
        .arg(&[
            "SETUSER",
            "sEcret-2",
            "on",
            ">sEcret-3",
            "~sEcret-4*",
            "+eval",
            "+evalsha",
        ])
        .exec(conn)
        .unwrap();
    // The wording of Redis 7.2.
    let names_the_user = server_but_for(|command, _| {
        let refusal = b"-NOPERM User sEcret-5 has no permissions to run the 'eval' command\r\n";
        (command == "EVAL").then(|| refusal.to_vec())
    });
    let found = probe_hurried(&names_the_user);
    says(
        &found,
        "scripts",
        Severity::Fails,
        "this user has no permissions to run the 'eval'",
    );
    assert!(!found.to_string().contains("sEcret"), "{found}");
    for login in [":sEcret-1", "sEcret-2:sEcret-3"] {
        let probe = probe(&format!("redis://{login}@127.0.0.1:{}/", server.port()));
        let text = format!("{probe} {probe:?}");
        assert!(!text.contains("sEcret"), "{text}");
    }
}

#[test]
fn an_unreachable_or_foreign_server_is_an_error() {
    let locks = |port| Locks::connect(&format!("redis://127.0.0.1:{port}/")).unwrap();
    let error = locks(1).probe().unwrap_err();
    assert!(matches!(error, Error::Pool { .. }), "{error:?}");
    let other = Fake::saying(|_, _| b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec());
    let error = locks(other.port()).probe().unwrap_err();
    assert!(
        error
            .to_string()
            .contains("does not answer like a Redis server"),
        "{error}"
    );
    let old = server_but_for(|command, _| (command == "INFO").then(|| bulk("redis_version:6.0.1")));
    let error = locks(old.port()).probe().unwrap_err();
    assert!(matches!(error, Error::TooOld { .. }), "{error:?}");
}

/// Of a managed service.
#[test]
fn missing_answers_are_not_failures() {
    let fake = server_but_for(move |command, _| {
        let greeting = b"%2\r\n+server\r\n+redis\r\n+version\r\n+7.4.1\r\n";
        match command {
            "HELLO" => Some(greeting.to_vec()),
            "INFO" | "CONFIG" => Some(b"-ERR unknown command\r\n".to_vec()),
            _ => None,
        }
    });
    let probe = probe_hurried(&fake);
    assert!(probe.locks_work());
    says(&probe, "server", Severity::Good, "Redis 7.4.1");
    for topic in ["memory", "persistence"] {
        says(&probe, topic, Severity::NotTold, "unknown");
    }
}

#[test]
fn an_unanswered_question_is_asked_once() {
    for (silent, topic, severity) in [
        ("EVAL", "scripts", Severity::Fails),
        ("PTTL", "wake-ups", Severity::Limits),
        ("TIME", "clock", Severity::NotTold),
        ("CONFIG", "persistence", Severity::NotTold),
        ("MULTI", "commands", Severity::NotTold),
    ] {
        let fake = server_but_for(move |command, _| (command == silent).then(Vec::new));
        let probe = probe_hurried(&fake);
        says(&probe, topic, severity, "");
        says(&probe, "keys", Severity::Good, "allowed");
        assert_eq!(probe.locks_work(), silent != "EVAL", "{silent}: {probe}");
    }
}

#[test]
fn a_server_that_falls_silent_is_asked_nothing_more() {
    let is_silent = AtomicBool::new(false);
    let fake = server_but_for(move |command, _| {
        is_silent.fetch_or(command == "TIME", Ordering::SeqCst);
        is_silent.load(Ordering::SeqCst).then(Vec::new)
    });
    let begun = Instant::now();
    let probe = probe_hurried(&fake);
    assert!(
        begun.elapsed() < 4_000 * MS + SLACK,
        "{:?}",
        begun.elapsed()
    );
    says(
        &probe,
        "round trip",
        Severity::Fails,
        "has stopped answering",
    );
    assert!(!probe.locks_work());
}

#[test]
fn the_whole_probe_ends_in_time() {
    let slowly: fn(&str) -> Option<Vec<u8>> = |_| {
        thread::sleep(900 * MS);
        None
    };
    let byte_by_byte: fn(&str) -> Option<Vec<u8>> =
        |command| (command == "TIME").then(|| TRICKLE.to_vec());
    at_once(
        [(slowly, true), (byte_by_byte, false)],
        |(answers, has_result)| {
            let fake = server_but_for(move |command, _| answers(command));
            let pool = Pool::builder()
                .connect(&format!("redis://127.0.0.1:{}/", fake.port()))
                .unwrap();
            let begun = Instant::now();
            let probe = Locks::new(&pool).unwrap().probe();
            let took = begun.elapsed();
            assert!(took < Duration::from_secs(12) + SLACK, "{took:?}");
            let is_open = |it: &Finding| it.severity == Severity::NotTold;
            let is_told = probe.is_ok_and(|it| it.findings().iter().any(is_open));
            assert_eq!(is_told, has_result);
        },
    );
}

#[test]
fn refused_writes_after_time() {
    let fake = server_but_for(|command, _| (command == "EVAL").then(|| TOO_LATE_FOR_TIME.to_vec()));
    let probe = probe_hurried(&fake);
    assert!(!probe.locks_work());
    says(
        &probe,
        "scripts",
        Severity::Fails,
        "set lua-replicate-commands yes",
    );
    assert!(!probe.to_string().contains("user_script"), "{probe}");
}

#[test]
fn missing_messages_and_another_product() {
    let fake = server_but_for(|command, _| {
        let info = "dragonfly_version:df-v1.2\r\nredis_version:7.2.0";
        (command == "INFO").then(|| bulk(info))
    });
    let probe = probe_hurried(&fake);
    assert!(probe.locks_work());
    says(&probe, "wake-ups", Severity::Limits, "no message arrived");
    says(&probe, "server", Severity::Limits, "dragonfly df-v1.2");
}

#[test]
fn clocks_that_differ() {
    let now = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap();
    let hour = Duration::from_secs(3_600);
    for (clock, side) in [
        (now + hour, "ahead of"),
        (now.saturating_sub(hour), "behind"),
    ] {
        let fake = server_but_for(move |command, _| {
            let seconds = clock.as_secs().to_string();
            let time = format!("*2\r\n${}\r\n{seconds}\r\n$1\r\n0\r\n", seconds.len());
            (command == "TIME").then(|| time.into_bytes())
        });
        let probe = probe_hurried(&fake);
        says(&probe, "clock", Severity::Limits, side);
        assert!(probe.locks_work());
    }
}

#[test]
fn a_servers_text_cannot_control_the_terminal() {
    let fake =
        server_but_for(|command, _| (command == "EVAL").then(|| b"-ERR \x1b[2J no\r\n".to_vec()));
    let probe = probe_hurried(&fake);
    says(&probe, "scripts", Severity::Fails, "no");
    assert!(!probe.to_string().contains('\u{1b}'));
}
