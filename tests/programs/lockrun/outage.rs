//! If the lock cannot be renewed, the command ends before the lease does.

use std::{
    fs::OpenOptions,
    io::Write,
    os::unix::fs::OpenOptionsExt,
    thread,
    time::{Duration, Instant},
};

use nix::{
    fcntl::OFlag,
    sys::signal::{Signal, killpg},
};
use redis::{Commands, cmd};

use crate::{
    common::{
        Server,
        wait::{PATIENCE, at_once, comes_true, comes_true_within},
    },
    lockrun::{
        group::state_and_parent,
        tool::{KEY, LONG, Tool, guardian, is_locked, ms, pid, run, send},
    },
};

/// The command has to end a tenth of it before the end.
const LEASE: Duration = Duration::from_secs(7);

/// The reason that no renewal succeeds.
#[derive(Clone, Copy, Debug)]
enum Gone {
    ServerKilled,
    ServerSilent,
    ToolStopped,
}

/// The command's reaction to the signal.
#[derive(Clone, Copy, Debug)]
enum Told {
    Ends,
    GoesOn,
}

/// Runs concurrently: each mostly waits.
#[test]
fn outages_longer_and_shorter_than_a_lease() {
    let cases: [fn(); 9] = [
        what_cannot_be_renewed_ends_before_the_lease,
        an_outage_that_is_shorter_than_the_lease_is_survived,
        a_failure_that_has_passed_is_not_the_reason,
        a_command_may_run_for_longer_than_the_lease,
        a_guardian_that_was_stopped_past_the_lease_ends_the_command_at_once,
        a_tool_that_was_stopped_past_the_lease_ends_its_command_at_once,
        a_command_whose_tool_was_stopped_after_a_loss_has_its_grace,
        a_group_that_was_stopped_for_longer_than_the_lease_goes_on,
        a_guardian_that_reads_nothing_holds_nothing_up,
    ];
    at_once(cases, |case| case());
}

fn what_cannot_be_renewed_ends_before_the_lease() {
    let cases = [
        (Gone::ServerKilled, Told::Ends),
        (Gone::ServerKilled, Told::GoesOn),
        (Gone::ServerSilent, Told::Ends),
        (Gone::ServerSilent, Told::GoesOn),
        (Gone::ToolStopped, Told::GoesOn),
    ];
    at_once(cases, |(gone, told)| ends_in_time(gone, told));
}

/// The last renewal was sent before the fault, so the lease ends at most its length after that.
fn ends_in_time(gone: Gone, told: Told) {
    let mut server = Server::start().unwrap();
    let after = match told {
        Told::Ends => "; exit 3",
        Told::GoesOn => "",
    };
    let script = format!("trap 'echo told{after}' TERM; echo in; {LONG}");
    let args = format!("--lease {LEASE:?} --grace 2300ms");
    let mut tool = Tool::apart(&server, &args, &script);
    tool.hear("in");
    let since = Instant::now();
    match gone {
        Gone::ServerKilled => server.kill().unwrap(),
        Gone::ServerSilent => server.freeze().unwrap(),
        Gone::ToolStopped => send(tool.pid(), Signal::SIGSTOP),
    }
    let said = tool.silence();
    let silent_after = since.elapsed();
    // The guardian leaves the margin.
    assert!(!matches!(gone, Gone::ToolStopped) || is_locked(&server));
    assert!(silent_after < LEASE, "{gone:?} {told:?}: {silent_after:?}");
    // A stopped tool cannot signal.
    let expected = match gone {
        Gone::ToolStopped => "",
        _ => "told\n",
    };
    assert_eq!(said, expected, "{gone:?} {told:?}");
    match gone {
        Gone::ToolStopped => send(tool.pid(), Signal::SIGCONT),
        _ => server.kill().unwrap(),
    }
    let ended = tool.ends_with(70);
    let outcome = ended.last();
    for part in ["`a` could not be renewed ", ": the command was ended, "] {
        assert!(outcome.contains(part), "{gone:?} {told:?}: {ended:?}");
    }
    if let Gone::ServerKilled = gone {
        assert!(outcome.contains("onnection refused"), "{ended:?}");
    }
}

fn an_outage_that_is_shorter_than_the_lease_is_survived() {
    let server = Server::start().unwrap();
    let mut conn = server.connection().unwrap();
    let mut tool = Tool::holding(&server, "--lease 9s --grace 100ms");
    tool.hear("in");
    server.freeze().unwrap();
    // After the first renewal, and far from the last moment.
    thread::sleep(ms(3_500));
    server.thaw().unwrap();
    assert!(comes_true(|| conn.pttl::<_, i64>(KEY).unwrap() > 6_000));
    tool.echoes("still here");
    assert_eq!(tool.finish().code, 0);
}

fn a_failure_that_has_passed_is_not_the_reason() {
    let server = Server::start().unwrap();
    let mut conn = server.connection().unwrap();
    let mut admin = server.connection().unwrap();
    let mut scripts = |rule: &str| {
        let user = ["SETUSER", "default", rule];
        cmd("ACL").arg(&user).query::<()>(&mut admin).unwrap();
    };
    let mut tool = Tool::holding(&server, "--lease 4500ms --grace 200ms");
    tool.hear("in");
    scripts("-@scripting");
    // After the first renewal.
    assert!(comes_true(|| conn.pttl::<_, i64>(KEY).unwrap() < 2_700));
    scripts("+@scripting");
    assert!(comes_true(|| conn.pttl::<_, i64>(KEY).unwrap() > 3_800));
    // One more renewal shows that the previous answer has arrived.
    assert!(comes_true(|| conn.pttl::<_, i64>(KEY).unwrap() < 3_500));
    assert!(comes_true(|| conn.pttl::<_, i64>(KEY).unwrap() > 3_800));
    tool.signal(Signal::SIGSTOP);
    assert!(comes_true(|| !is_locked(&server)));
    tool.signal(Signal::SIGCONT);
    // A renewal may have been under way when it was stopped: then its time-out is the reason.
    let ended = tool.ends_with(70);
    let reason = ended.last();
    assert!(reason.contains("could not be renewed"), "{ended:?}");
    assert!(!reason.contains("NOPERM"), "{ended:?}");
}

fn a_command_may_run_for_longer_than_the_lease() {
    let server = Server::start().unwrap();
    let ended = run(&server, "--lease 5s", "sleep 7; echo out");
    assert_eq!((ended.code, &*ended.out, &*ended.err), (0, "out\n", ""));
}

/// As when a machine or a container is suspended.
fn a_guardian_that_was_stopped_past_the_lease_ends_the_command_at_once() {
    let server = Server::start().unwrap();
    let script = format!("trap '' TERM; echo $$; {LONG}");
    let mut tool = Tool::apart(&server, "--lease 4s", &script);
    let command = tool.line();
    let guardian = guardian(&command);
    tool.signal(Signal::SIGSTOP);
    send(guardian, Signal::SIGSTOP);
    assert!(comes_true(|| !is_locked(&server)));
    send(guardian, Signal::SIGCONT);
    tool.silence();
    tool.signal(Signal::SIGCONT);
    tool.ends_with(70);
}

fn a_tool_that_was_stopped_past_the_lease_ends_its_command_at_once() {
    let server = Server::start().unwrap();
    let script = format!("trap '' TERM; echo $$; {LONG}");
    let mut tool = Tool::apart(&server, "--lease 7s --grace 2300ms", &script);
    let command = tool.line();
    let guardian = guardian(&command);
    // Otherwise the guardian would end it, because it acts sooner.
    send(guardian, Signal::SIGKILL);
    tool.signal(Signal::SIGSTOP);
    assert!(comes_true_within(4 * PATIENCE, || !is_locked(&server)));
    let went_on = Instant::now();
    tool.signal(Signal::SIGCONT);
    tool.silence();
    // Without the grace period.
    assert!(went_on.elapsed() < ms(2_200), "{:?}", went_on.elapsed());
    tool.ends_with(70);
}

/// By our clock the lease would last for a minute, while others hold the lock.
fn a_command_whose_tool_was_stopped_after_a_loss_has_its_grace() {
    let server = Server::start().unwrap();
    let script = format!("trap 'echo told' TERM; echo in; {LONG}");
    let mut tool = Tool::apart(&server, "--lease 60s --grace 2s", &script);
    tool.hear("in");
    let () = server.connection().unwrap().del(KEY).unwrap();
    tool.hear("told").signal(Signal::SIGSTOP);
    let stopped = Instant::now();
    tool.silence();
    let ended_after = stopped.elapsed();
    assert!(
        ended_after > ms(1_000) && ended_after < ms(7_000),
        "{ended_after:?}"
    );
    tool.signal(Signal::SIGCONT);
    tool.ends_with(70);
}

/// lockrun renews the lease meanwhile, and tells the guardian, which has read nothing of it.
fn a_group_that_was_stopped_for_longer_than_the_lease_goes_on() {
    at_once([(); 8], |()| {
        let server = Server::start().unwrap();
        let mut tool = Tool::start(&server, "--lease 2s", "echo $$; exec cat");
        let group = pid(guardian(&tool.line()));
        killpg(group, Signal::SIGSTOP).unwrap();
        thread::sleep(ms(3_000));
        killpg(group, Signal::SIGCONT).unwrap();
        tool.echoes("still here");
        assert_eq!(tool.finish().code, 0);
    });
}

fn a_guardian_that_reads_nothing_holds_nothing_up() {
    let server = Server::start().unwrap();
    let mut conn = server.connection().unwrap();
    let mut tool = Tool::start(&server, "--lease 3s", "echo $$; exec cat");
    let guardian = guardian(&tool.line());
    send(guardian, Signal::SIGSTOP);
    assert!(comes_true(|| state_and_parent(guardian).unwrap().0 == "T"));
    let mut pipe = OpenOptions::new();
    pipe.write(true).custom_flags(OFlag::O_NONBLOCK.bits());
    let mut pipe = pipe.open(format!("/proc/{guardian}/fd/0")).unwrap();
    while pipe.write(&[b'\n'; 4_096]).is_ok() {}
    // Two renewals, so that the first has been told.
    for _ in 0..2 {
        assert!(comes_true(|| conn.pttl::<_, i64>(KEY).unwrap() < 2_400));
        assert!(comes_true(|| conn.pttl::<_, i64>(KEY).unwrap() > 2_600));
    }
    let _: () = conn.del(KEY).unwrap();
    let ended = tool.ends_with(70);
    assert!(ended.last().contains("was taken away"), "{ended:?}");
}
