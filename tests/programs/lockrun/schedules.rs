//! The schedules of `docs/lockrun.md`.

use std::process::{Child, Command, Stdio};

use leasehold::Locks;

use crate::common::{Server, wait::comes_true};

const PAGE: &str = include_str!("../../../docs/lockrun.md");
const TOOL: &str = "/usr/local/bin/lockrun";
const JOB: &str = "/usr/local/bin/backup --full";

/// The text after `start` in the first block of this kind.
fn after(block: &str, start: &str) -> &'static str {
    let (_, block) = PAGE.split_once(&format!("```{block}\n")).unwrap();
    let (block, _) = block.split_once("```").unwrap();
    let lines = block.lines().map(str::trim);
    lines
        .into_iter()
        .find_map(|line| line.strip_prefix(start))
        .unwrap()
}

fn server() -> Server {
    Server::start_with(&["--requirepass", "PASSWORD"]).unwrap()
}

/// Starts the crontab's line with another job, in the same minimal environment as cron's.
fn host(server: &Server, change: impl FnOnce(String) -> String) -> Child {
    let here = format!("127.0.0.1:{}", server.port());
    let url = after("crontab", "LEASEHOLD_URL=").replace("10.0.0.7", &here);
    let line = after("crontab", "15 3 * * *  root  ").replace(TOOL, env!("CARGO_BIN_EXE_lockrun"));
    Command::new("/bin/sh")
        .args(["-c", &change(line)])
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .env("LEASEHOLD_URL", &url)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

#[test]
fn cron_on_three_hosts_makes_one_backup() {
    let server = server();
    let start = || host(&server, |line| line.replace(JOB, "/bin/echo made"));
    let hosts = [start(), start(), start()];
    let ended = hosts.map(|host| host.wait_with_output().unwrap());
    for one in &ended {
        assert!(one.status.success() && one.stderr.is_empty(), "{ended:?}");
    }
    let made = ended.iter().filter(|one| one.stdout == b"made\n").count();
    assert_eq!(made, 1, "{ended:?}");
}

/// Cron mails what is printed.
#[test]
fn cron_is_told_of_a_job_that_hangs_or_fails_and_of_nothing_else() {
    let server = server();
    let said = |job: &str| {
        let change = |line: String| line.replace(JOB, job).replace("--wait 2h", "--wait 300ms");
        let ended = host(&server, change).wait_with_output().unwrap();
        let said = String::from_utf8(ended.stderr).unwrap();
        assert_eq!(ended.stdout, b"");
        (ended.status.code().unwrap(), said)
    };
    let failed = "lockrun: `backup`: the command failed, exit status: 1\n";
    assert_eq!(said("/bin/false"), (1, failed.to_owned()));
    let mut hangs = host(&server, |line| line.replace(JOB, "/bin/sleep 20"));
    let url = format!("redis://:PASSWORD@127.0.0.1:{}/", server.port());
    let locks = Locks::connect(&url).unwrap();
    let lock = locks.lock("backup");
    assert!(comes_true(|| lock.inspect().unwrap().is_held()));
    let (code, busy) = said("/bin/true");
    let begins = "lockrun: `backup` is busy: held by ";
    assert!(code == 75 && busy.starts_with(begins), "{code} {busy}");
    assert_eq!(busy.lines().count(), 1, "{busy}");
    hangs.kill().unwrap();
    hangs.wait().unwrap();
}

#[test]
fn all_schedules_run_the_same_command() {
    let cron = after("crontab", "15 3 * * *  root  ").replace(" --quiet", "");
    assert_eq!(after("ini", "ExecStart="), cron);
    let pod = after("yaml", "command: [").trim_end_matches(']');
    assert_eq!(pod.replace(", ", " "), cron);
}
