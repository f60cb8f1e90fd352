//! `Locks::probe` on different servers.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant, SystemTime},
};

use leasehold::{
    Error, Finding, Locks, Options, Pool, Probe,
    Severity::{self, Fails, Good, Limits, NotTold},
};

use crate::common::{
    Fake, MS, SLACK, Server, clients::count, fake::TRICKLE, hold::comes_true, monitor::Monitor,
    tell, wait::at_once,
};

const TOPICS: [&str; 9] = [
    "server",
    "topology",
    "scripts",
    "wake-ups",
    "replicas",
    "memory",
    "persistence",
    "clock",
    "commands",
];

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
            "replicas" | "persistence" => Limits,
            _ => Good,
        };
        assert_eq!(severity(&probe, topic), expected, "{probe}");
    }
    let found = &probe.finding("server").unwrap().found;
    let address = format!(" at 127.0.0.1:{}", server.port());
    assert!(found.ends_with(&address), "{found}");
    says(&probe, "wake-ups", Good, "a message arrived");
    let table = probe.to_string();
    assert!(table.ends_with("\nLocks work here."), "{table}");
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
    let refused = locks.with(Options::new().prefix("{a}")).probe();
    assert!(refused.is_err_and(|error| error.to_string().contains("prefix")));
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

/// A server's settings, if locks work there, and what is said of a topic.
const SETTINGS: &str = "
rename-command CLIENT        | work | wake-ups    | Limits | unknown command
rename-command CLIENT        | work | wake-ups    | Limits | waiters poll
rename-command SCRIPT        | work | scripts     | Good   |
rename-command CONFIG        | work | persistence | Limits | no append-only file
rename-command CONFIG        | work | memory      | Good   | noeviction
rename-command WAIT          | work | replicas    | Limits | unknown command
rename-command WAIT          | work | commands    | Limits | missing: wait
rename-command EVAL          | no   | scripts     | Fails  | unknown command
rename-command EVALSHA       | no   | scripts     | Fails  | unknown command
rename-command HGET          | no   | commands    | Fails  | missing: hget
rename-command ZADD          | work | commands    | Limits | missing: zadd
maxmemory 100mb allkeys-lru  | work | memory      | Limits | may evict held locks
maxmemory 100mb volatile-ttl | work | memory      | Limits | volatile-ttl
maxmemory 100mb noeviction   | work | memory      | Good   | noeviction
maxmemory 0 allkeys-lru      | work | memory      | Good   | maxmemory 0
appendonly yes no            | work | persistence | Good   | append-only file
appendonly no no             | work | persistence | Limits | not on disk";

/// The cells of each row.
fn rows(table: &str) -> Vec<[&str; 5]> {
    let rows = table.trim_start().lines();
    let cells = rows.map(|row| row.splitn(5, '|').map(str::trim).collect::<Vec<_>>());
    cells.map(|cells| cells.try_into().unwrap()).collect()
}

fn agrees(probe: &Probe, [what, is_fit, topic, severity, text]: [&str; 5]) {
    let severities = [Good, Limits, Fails, NotTold];
    let found = severities
        .into_iter()
        .find(|it| format!("{it:?}") == severity);
    says(probe, topic, found.unwrap(), text);
    assert_eq!(probe.locks_work(), is_fit == "work", "{what}: {probe}");
    let is_told = probe.to_string().ends_with("Locks do not work here.");
    assert_eq!(is_told, is_fit != "work", "{what}: {probe}");
}

#[test]
fn what_the_settings_of_a_server_mean() {
    at_once(rows(SETTINGS), |row| {
        let args: Vec<_> = match *row[0].split(' ').collect::<Vec<_>>() {
            ["rename-command", name] => vec!["--rename-command", name, ""],
            ["maxmemory", size, policy] => vec!["--maxmemory", size, "--maxmemory-policy", policy],
            [_, append, fsync] => vec!["--appendonly", append, "--appendfsync", fsync],
            _ => panic!("{row:?}"),
        };
        agrees(&started_with(&args), row);
    });
}

/// A command, and what the answer to it means. `silent` is none at all, `time` the server's clock
/// an hour ahead or behind; the third refusal is the wording of Redis 7.2.
const ANSWERS: &str = r"
EVAL   -ERR Error running script (call to f_1): @user_script:3: @user_script: 3: Write commands not allowed after non deterministic commands. | no | scripts | Fails | lua-replicate-commands
EVAL   -ERR \x1b[2J no                           | no   | scripts     | Fails   | no
EVAL   -NOPERM User sEcret-5 has no permissions to run the 'eval' command | no | scripts | Fails | has no permissions to run the 'eval'
EVAL   silent                                    | no   | scripts     | Fails   | no answer
PTTL   silent                                    | work | wake-ups    | Limits  | no answer
TIME   silent                                    | work | clock       | NotTold | no answer
MULTI  silent                                    | work | commands    | NotTold | no answer
INFO   redis_version:7.2.0                       | work | wake-ups    | Limits  | no message arrived
INFO   redis_version:7.2.0                       | work | memory      | NotTold | not reported
INFO   -ERR unknown command                      | work | server      | NotTold | not reported
TIME   3600                                      | work | clock       | Limits  | ahead of
TIME   -3600                                     | work | clock       | Limits  | behind";

/// The bytes of such an answer.
fn bytes(command: &str, answer: &str) -> Vec<u8> {
    match (command, answer) {
        (_, "silent") => Vec::new(),
        ("TIME", off) => {
            let now = SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs();
            let seconds = now.saturating_add_signed(off.parse().unwrap());
            format!("*2\r\n$10\r\n{seconds}\r\n$1\r\n0\r\n").into_bytes()
        }
        ("INFO", "redis_version:7.2.0") => bulk(answer),
        _ => format!("{}\r\n", answer.replace(r"\x1b", "\x1b")).into_bytes(),
    }
}

#[test]
fn what_an_answer_or_none_means() {
    at_once(rows(ANSWERS), |row| {
        let (asked, answer) = row[0].split_once(' ').unwrap();
        let (asked, answer) = (asked.to_owned(), bytes(asked, answer.trim()));
        let fake = server_but_for(move |command, _| (command == asked).then(|| answer.clone()));
        let probe = probe_hurried(&fake);
        agrees(&probe, row);
        // Nothing that is for the server's eyes, or that controls a terminal.
        for secret in ["user_script", "sEcret", "\x1b"] {
            assert!(!probe.to_string().contains(secret), "{probe}");
        }
    });
}

/// Locks do not work, whatever else the server offers.
#[test]
fn a_server_that_takes_no_writes_now() {
    for settings in [["--maxmemory", "1"], ["--min-replicas-to-write", "1"]] {
        let probe = started_with(&settings);
        assert!(!probe.locks_work(), "{settings:?}: {probe}");
        says(&probe, "scripts", Fails, "clock and writes");
        says(&probe, "wake-ups", Limits, "poll");
        assert!(!probe.to_string().contains("user_script"), "{probe}");
    }
    let loading = b"-LOADING Redis is loading the dataset in memory\r\n";
    let fake = server_but_for(|command, _| {
        let is_refused = matches!(command, "EVAL" | "EVALSHA" | "PTTL" | "SET" | "WAIT");
        is_refused.then(|| loading.to_vec())
    });
    let probe = probe_hurried(&fake);
    says(&probe, "scripts", Fails, "LOADING");
    says(&probe, "wake-ups", Limits, "LOADING");
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
    says(&of_replica, "topology", Fails, "a replica");
    says(&of_replica, "scripts", Fails, "READONLY");
    says(&of_replica, "replicas", Limits, "refused");
    let of_master = probe(&master.url());
    assert!(of_master.locks_work());
    let confirms = |it: &Finding| it.found.contains("1 confirmed");
    assert!(comes_true(|| {
        confirms(probe(&master.url()).finding("replicas").unwrap())
    }));
    replica.freeze().unwrap();
    says(&probe(&master.url()), "replicas", Limits, "0 confirmed");
    replica.thaw().unwrap();
}

#[test]
fn no_password_and_no_user_is_printed() {
    let server = Server::start_with(&["--requirepass", "sEcret-1"]).unwrap();
    let conn = &mut redis::Client::open(format!("redis://:sEcret-1@127.0.0.1:{}", server.port()))
        .unwrap()
        .get_connection()
        .unwrap();
    tell(
        conn,
        "ACL SETUSER sEcret-2 on >sEcret-3 ~sEcret-4* +eval +evalsha",
    );
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
    says(&probe, "clock", Fails, "no answer");
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
            let is_open = |it: &Finding| it.severity == NotTold;
            let is_told = probe.is_ok_and(|it| it.findings().iter().any(is_open));
            assert_eq!(is_told, has_result);
        },
    );
}
