//! The schedules of `docs/lockrun.md`.

use std::process::{Command, Stdio};

use crate::common::Server;

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

#[test]
fn cron_on_three_hosts_makes_one_backup() {
    let server = Server::start_with(&["--requirepass", "PASSWORD"]).unwrap();
    let here = format!("127.0.0.1:{}", server.port());
    let url = after("crontab", "LEASEHOLD_URL=").replace("10.0.0.7", &here);
    let line = after("crontab", "15 3 * * *  root  ")
        .replace(TOOL, env!("CARGO_BIN_EXE_lockrun"))
        .replace(JOB, "/bin/echo made");
    // The same minimal environment as cron's.
    let host = || {
        Command::new("/bin/sh")
            .args(["-c", &line])
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .env("LEASEHOLD_URL", &url)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    };
    let hosts = [host(), host(), host()];
    let ended = hosts.map(|host| host.wait_with_output().unwrap());
    for one in &ended {
        assert!(one.status.success() && one.stderr.is_empty(), "{ended:?}");
    }
    let made = ended.iter().filter(|one| one.stdout == b"made\n").count();
    assert_eq!(made, 1, "{ended:?}");
}

#[test]
fn all_schedules_run_the_same_command() {
    let cron = after("crontab", "15 3 * * *  root  ").replace(" --quiet", "");
    assert_eq!(after("ini", "ExecStart="), cron);
    let pod = after("yaml", "command: [").trim_end_matches(']');
    assert_eq!(pod.replace(", ", " "), cron);
}
