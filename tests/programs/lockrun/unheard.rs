//! Every message of lockrun, on a stderr that somebody reads and on one that nobody reads: what
//! lockrun does, and when, is the same.

use std::{
    collections::BTreeSet,
    fs::File,
    io::{BufRead, BufReader, PipeReader, PipeWriter, Write, copy, pipe, sink},
    os::fd::AsFd,
    path::Path,
    process::{Command, Stdio},
    sync::{
        Arc, Mutex,
        mpsc::{RecvTimeoutError, channel},
    },
    thread,
    time::{Duration, Instant},
};

use nix::{
    fcntl::{FcntlArg, OFlag, fcntl},
    sys::signal::Signal,
};
use redis::{Commands, cmd};

use crate::{
    common::{
        SLACK, Server,
        server::free_port,
        wait::{at_once, comes_true},
    },
    lockrun::tool::{KEY, LONG, Tool, guardian, is_locked, lockrun_at, ms, program, run, send},
};

/// The end of lockrun waits this long for its last text.
const LAST_WORD: Duration = Duration::from_secs(1);
/// Longer than each case.
const LONGEST: Duration = Duration::from_secs(20);
/// Makes all messages, each in a function.
const MESSAGES: &str = include_str!("../../../src/bin/lockrun/speaking/messages.rs");

/// A run in which lockrun has something to say.
struct Case {
    /// The functions of the messages, and a part of each.
    says: &'static [(&'static str, &'static str)],
    run: fn(&Stage) -> (Tool, i32),
}

/// A server, and the stderr of the lockruns that a case starts.
struct Stage {
    server: Server,
    stderr: PipeWriter,
    /// `None` if nobody reads it.
    heard: Option<Heard>,
}

#[derive(Clone, Debug, Default)]
struct Heard(Arc<Mutex<String>>);

impl Heard {
    fn listen(&self, from: PipeReader) {
        let heard = Arc::clone(&self.0);
        thread::spawn(move || {
            for line in BufReader::new(from).lines().map_while(Result::ok) {
                *heard.lock().unwrap() += &(line + "\n");
            }
        });
    }
}

impl Stage {
    /// The arguments, and a script. Only lockrun writes to stderr.
    fn start(&self, args: &str, script: &str) -> Tool {
        let mut command = lockrun_at(&self.server.url());
        command.args(args.split_whitespace());
        let script = format!("exec 2>/dev/null; {script}");
        self.spawn(command.args(["--", "sh", "-c", &script]))
    }

    fn ask(&self, url: &str, args: &str) -> Tool {
        self.spawn(lockrun_at(url).args(args.split_whitespace()))
    }

    fn spawn(&self, command: &mut Command) -> Tool {
        Tool::spawn_with(command, self.stderr.try_clone().unwrap().into())
    }

    /// Makes the server refuse or allow every script.
    fn scripts(&self, rule: &str) {
        let user = ["SETUSER", "default", rule];
        let mut conn = self.server.connection().unwrap();
        cmd("ACL").arg(&user).query::<()>(&mut conn).unwrap();
    }

    /// True as soon as it was said, and if nobody can tell.
    fn has_said(&self, part: &str) -> bool {
        let Some(Heard(heard)) = &self.heard else {
            // Without it some cases would end before lockrun has something to say.
            thread::sleep(ms(300));
            return true;
        };
        comes_true(|| heard.lock().unwrap().contains(part))
    }

    fn left(&self) -> i64 {
        self.server.connection().unwrap().pttl(KEY).unwrap()
    }
}

#[test]
fn no_message_delays_an_act() {
    let both = CASES.iter().flat_map(|case| [(case, true), (case, false)]);
    let both: Vec<_> = both.collect();
    // Each mostly waits.
    for some in both.chunks(12) {
        at_once(some.to_vec(), |(case, is_heard)| is_right(case, is_heard));
    }
    let said = CASES.iter().flat_map(|case| case.says);
    let said: BTreeSet<_> = said.map(|(message, _)| *message).collect();
    let made = MESSAGES.split("\npub(crate) fn ").skip(1);
    let made: BTreeSet<_> = made.map(|it| it.split('(').next().unwrap()).collect();
    assert_eq!(said, made, "a message that no case has");
}

fn is_right(case: &Case, is_heard: bool) {
    let (mut reader, stderr) = pipe().unwrap();
    let heard = is_heard.then(Heard::default);
    let (over, is_over) = channel::<()>();
    if let Some(heard) = &heard {
        heard.listen(reader);
    } else {
        fill(&stderr);
        // A lockrun that waits for a reader gets one at last, too late.
        thread::spawn(move || match is_over.recv_timeout(LONGEST) {
            Err(RecvTimeoutError::Timeout) => copy(&mut reader, &mut sink()).unwrap(),
            _ => 0,
        });
    }
    let since = Instant::now();
    let server = Server::start().unwrap();
    let stage = Stage {
        server,
        stderr,
        heard,
    };
    let (tool, code) = (case.run)(&stage);
    let ended = tool.ends();
    let names: Vec<_> = case.says.iter().map(|(message, _)| message).collect();
    assert_eq!(ended.code, code, "{names:?}, heard: {is_heard}: {ended:?}");
    assert!(since.elapsed() < LONGEST, "{names:?}");
    drop(over);
    for (message, part) in case.says.iter().filter(|_| is_heard) {
        assert!(stage.has_said(part), "{message}: {:?}", stage.heard);
    }
}

#[test]
fn of_many_unread_messages_the_oldest_are_left_out_and_counted() {
    let (reader, stderr) = pipe().unwrap();
    fill(&stderr);
    let server = Server::start().unwrap();
    let heard = None;
    let stage = Stage {
        server,
        stderr,
        heard,
    };
    let script = format!("trap 'echo told' USR1; echo in; {LONG}");
    let mut tool = stage.start("--verbose", &script);
    tool.hear("in");
    for _ in 0..120 {
        tool.signal(Signal::SIGUSR1);
        tool.hear("told");
    }
    let heard = Heard::default();
    heard.listen(reader);
    tool.signal(Signal::SIGTERM);
    tool.ends_with(143);
    drop(stage);
    // Two steps before the command, 120, and the last signal.
    let all = || {
        let text = heard.0.lock().unwrap();
        let lines = text.split("lockrun: ").skip(1);
        let left_out = |line: &str| line.split_once(" lines were left out")?.0.parse().ok();
        lines.map(|line| left_out(line).unwrap_or(1)).sum::<usize>()
    };
    assert!(comes_true(|| all() == 123), "{heard:?}");
    assert!(heard.0.lock().unwrap().contains("left out"), "{heard:?}");
}

/// The reader is gone, the disk is full, a file may not grow, the terminal is another job's.
#[test]
fn a_stderr_that_cannot_be_written_costs_only_words() {
    const RUN: &str = "exec $1 --name a --url $2 --verbose -- sh -c 'exit 3'";
    const LIMITED: &str = "ulimit -f 0; exec $1 --name a --url $2 --verbose -- sh -c 'exit 3'";
    const TERMINAL: &str = r#"script -qec "stty tostop; set -m
        $1 --name a --url $2 --verbose -- sh -c 'exit 3' &
        wait %1" /dev/null"#;
    let server = Server::start().unwrap();
    let file = tempfile::tempfile().unwrap();
    let full = File::options().write(true).open("/dev/full").unwrap();
    let cases: [(&str, Stdio); 4] = [
        (RUN, pipe().unwrap().1.into()),
        (RUN, full.into()),
        (LIMITED, file.into()),
        (TERMINAL, Stdio::piped()),
    ];
    for (script, stderr) in cases {
        let mut shell = Command::new("sh");
        shell
            .args(["-c", script, "sh"])
            .arg(program().get_program());
        let mut tool = Tool::spawn_with(shell.arg(server.url()), stderr);
        tool.silence();
        assert!(!is_locked(&server), "{script}");
        tool.ends_with(3);
    }
}

/// Leaves no room for one more byte.
fn fill(pipe: &PipeWriter) {
    let set = |flags| fcntl(pipe.as_fd(), FcntlArg::F_SETFL(flags)).unwrap();
    set(OFlag::O_NONBLOCK);
    for some in [4096, 1] {
        while (&mut &*pipe).write(&vec![b'.'; some]).is_ok() {}
    }
    set(OFlag::empty());
}

/// It ends within this time of the last act, and the last word.
#[track_caller]
fn soon(since: Instant, limit: Duration) {
    let passed = since.elapsed();
    assert!(passed < limit + LAST_WORD + 2 * SLACK, "{passed:?}");
}

const CASES: &[Case] = &[
    Case {
        says: &[
            ("acquiring", "acquiring `a` from redis at 127.0.0.1:"),
            ("acquired", "acquired `a`, fencing token "),
            (
                "command_failed",
                "lockrun: `a`: the command failed, exit status: 3",
            ),
        ],
        run: |stage| {
            let since = Instant::now();
            let mut tool = stage.start("--verbose", "exit 3");
            tool.silence();
            assert!(comes_true(|| !is_locked(&stage.server)));
            soon(since, ms(1_000));
            (tool, 3)
        },
    },
    Case {
        says: &[
            ("waiting", ", unless renewed; waiting for another "),
            ("busy", ", unless renewed\n"),
        ],
        run: |stage| {
            let mut holder = Tool::holding(&stage.server, "");
            holder.hear("in");
            let since = Instant::now();
            // It waits for the second one with the first one held.
            let args = "--verbose --name 0 --wait 1s";
            let mut tool = stage.start(args, "echo made");
            assert_eq!(tool.silence(), "");
            soon(since, ms(1_000));
            let first: bool = stage.server.connection().unwrap().exists("lock:0").unwrap();
            assert!(!first);
            (tool, 75)
        },
    },
    Case {
        says: &[
            ("retrying", "refused; retrying for another "),
            ("not_acquired", "cannot lock `a` within 1s: "),
        ],
        run: |stage| {
            let since = Instant::now();
            let url = format!("redis://127.0.0.1:{}/", free_port().unwrap());
            let mut tool = stage.ask(&url, "--verbose --wait 1s -- true");
            tool.silence();
            soon(since, ms(1_000));
            (tool, 69)
        },
    },
    Case {
        says: &[
            ("passed_on", "passing SIGTERM on to the command"),
            ("killing", "killing the remaining processes"),
        ],
        run: |stage| {
            let script = format!("trap 'echo told' TERM; echo in; {LONG}");
            let mut tool = stage.start("--verbose --grace 500ms", &script);
            tool.hear("in").signal(Signal::SIGTERM);
            let since = Instant::now();
            tool.hear("told");
            tool.silence();
            soon(since, ms(500));
            assert!(comes_true(|| !is_locked(&stage.server)));
            (tool, 137)
        },
    },
    Case {
        says: &[
            ("ending", "`a` was taken away: ending the command"),
            (
                "lost",
                "`a` was taken away: the command was ended, exit status: 7",
            ),
        ],
        run: |stage| {
            let script = format!("trap 'echo told; exit 7' TERM; echo in; {LONG}");
            let mut tool = stage.start("--verbose", &script);
            tool.hear("in");
            let since = Instant::now();
            stage
                .server
                .connection()
                .unwrap()
                .del::<_, ()>(KEY)
                .unwrap();
            tool.hear("told");
            soon(since, ms(1_000));
            (tool, 70)
        },
    },
    Case {
        says: &[
            ("not_renewed", "cannot renew `a`: "),
            ("renewed_again", "`a` is renewed again"),
        ],
        run: |stage| {
            let args = "--verbose --lease 4500ms --grace 100ms";
            let mut tool = stage.start(args, "echo in; exec cat");
            tool.hear("in");
            stage.scripts("-@scripting");
            assert!(comes_true(|| stage.left() < 2_700));
            stage.scripts("+@scripting");
            assert!(comes_true(|| stage.left() > 3_800));
            goes_on_past_its_lease(&mut tool, ms(4_500));
            (tool, 0)
        },
    },
    Case {
        says: &[("guardian_gone", "the guardian is gone")],
        run: |stage| {
            let args = "--verbose --lease 3s";
            let mut tool = stage.start(args, "echo $$; exec cat");
            send(guardian(&tool.line()), Signal::SIGKILL);
            goes_on_past_its_lease(&mut tool, ms(3_000));
            (tool, 0)
        },
    },
    Case {
        says: &[(
            "stopped",
            "the command was stopped by SIGSTOP; lockrun still holds `a`",
        )],
        run: |stage| {
            let mut tool = stage.start("--lease 3s", "echo $$; exec cat");
            let command = tool.line().parse().unwrap();
            send(command, Signal::SIGSTOP);
            assert!(stage.has_said("was stopped by SIGSTOP"));
            send(command, Signal::SIGCONT);
            goes_on_past_its_lease(&mut tool, ms(3_000));
            (tool, 0)
        },
    },
    Case {
        says: &[(
            "not_released",
            "cannot release the lock, which ends with its lease: ",
        )],
        run: |stage| {
            let mut tool = stage.start("--verbose --lease 3s", "echo in; exec cat");
            tool.hear("in");
            stage.server.freeze().unwrap();
            let since = Instant::now();
            tool.close();
            tool.silence();
            soon(since, ms(3_000));
            (tool, 0)
        },
    },
    Case {
        says: &[(
            "may_be_run_again",
            "`a` may be run again: lockrun got TERM or INT",
        )],
        run: |stage| {
            let args = "--lease 1h --grace 300ms --once-per 20h";
            let start = |script: &str| stage.start(args, script);
            let mut tool = Tool::apart_from("echo $$; read go", start);
            let guardian = format!("/proc/{}", guardian(&tool.line()));
            stage.server.freeze().unwrap();
            tool.tells("go");
            tool.silence();
            // The guardian is dismissed before the release.
            assert!(comes_true(|| !Path::new(&guardian).exists()));
            tool.signal(Signal::SIGTERM);
            let since = Instant::now();
            assert!(comes_true(|| !tool.is_running()));
            soon(since, ms(300));
            (tool, 0)
        },
    },
    Case {
        says: &[("already_run", "`a` was run ")],
        run: |stage| {
            assert_eq!(run(&stage.server, "--once-per 20h", "exit 0").code, 0);
            (stage.start("--once-per 20h", "echo made"), 0)
        },
    },
    Case {
        says: &[("not_run", "cannot run /no/such: no such file or directory")],
        run: |stage| (stage.ask(&stage.server.url(), "-- /no/such"), 127),
    },
    Case {
        says: &[("system", "system error: too many open files")],
        run: |stage| {
            let lockrun = lockrun_at(&stage.server.url());
            let mut shell = Command::new("sh");
            shell.args(["-c", "ulimit -n 4; exec \"$@\"", "sh"]);
            shell.arg(lockrun.get_program()).args(lockrun.get_args());
            (stage.spawn(shell.args(["--", "true"])), 71)
        },
    },
    Case {
        says: &[("system", "system error: ")],
        run: |stage| {
            // No thread can be started, not even the one that writes.
            let mut lockrun = lockrun_at(&stage.server.url());
            lockrun.env("RUST_MIN_STACK", (1_u64 << 50).to_string());
            (stage.spawn(lockrun.args(["--", "true"])), 71)
        },
    },
    Case {
        says: &[("in_json", r#""outcome":"ended""#)],
        run: |stage| (stage.start("--json", "exit 3"), 3),
    },
    Case {
        says: &[("unanswered", "lockrun: cannot inspect `a`: cannot reach ")],
        run: |stage| {
            let url = format!("redis://127.0.0.1:{}/", free_port().unwrap());
            (stage.ask(&url, "--status"), 69)
        },
    },
    Case {
        says: &[("wrong_arguments", "unexpected argument '--no-such' found")],
        run: |stage| (stage.spawn(program().arg("--no-such")), 64),
    },
    Case {
        says: &[("not_written", "cannot write to stdout: ")],
        run: |stage| {
            let mut shell = Command::new("sh");
            shell.args(["-c", "exec \"$@\" >/dev/full", "sh"]);
            shell.arg(program().get_program());
            (stage.spawn(shell.arg("--help")), 74)
        },
    },
];

/// The guardian learns of the renewals, so it does not kill the command.
fn goes_on_past_its_lease(tool: &mut Tool, lease: Duration) {
    thread::sleep(lease);
    tool.echoes("still here");
    tool.close();
}
