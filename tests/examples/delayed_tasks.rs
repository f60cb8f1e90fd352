//! The book's delayed tasks: each is moved under its own lock, and runs once.

use crate::common::{Server, example};

#[test]
fn the_task_of_a_dead_worker_runs_exactly_once() {
    let server = Server::start().unwrap();
    for _ in 0..4 {
        check_run(&server);
    }
    let mut conn = server.connection().unwrap();
    let left: Vec<String> = redis::cmd("KEYS").arg("*").query(&mut conn).unwrap();
    assert_eq!(left, [""; 0]);
}

fn check_run(server: &Server) {
    let ended = example("delayed_tasks").arg(server.url()).output().unwrap();
    assert!(ended.status.success(), "{ended:?}");
    let said = String::from_utf8(ended.stdout).unwrap();
    let lines = |words: &str| said.lines().filter(|line| line.contains(words)).count();
    assert_eq!(lines("worker 0 locks task 00 and dies"), 1, "{said}");
    for n in 0..12 {
        assert_eq!(lines(&format!("runs task {n:02}, due at ")), 1, "{said}");
    }
    assert!(
        said.ends_with("12 tasks ran, each once and none early\n"),
        "{said}"
    );
}
