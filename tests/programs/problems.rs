//! The examples of the book's three problems show the failure and then the cure.

use crate::common::{Server, example, examples::printed};

/// The stories of an example: a title and what happens.
fn stories_of(name: &str) -> Vec<String> {
    let server = Server::start().unwrap();
    let text = printed(|| {
        // A failed run may have left a lock.
        let mut conn = server.connection().unwrap();
        redis::cmd("FLUSHALL").exec(&mut conn).unwrap();
        let mut command = example(name);
        command.arg(server.url());
        command
    });
    let mut left = server.connection().unwrap();
    let keys: Vec<String> = redis::cmd("KEYS").arg("*").query(&mut left).unwrap();
    assert!(
        keys.iter().all(|key| key.ends_with(":lease")),
        "left behind: {keys:?}"
    );
    text.trim().split("\n\n").map(str::to_owned).collect()
}

fn goes_wrong(story: &str) -> bool {
    story.contains("WRONG")
}

#[test]
fn an_overdue_release_frees_anothers_lock_only_without_the_token() {
    let stories = stories_of("problem_1_overrun");
    assert!(goes_wrong(&stories[0]), "{stories:?}");
    assert!(
        stories[1..].iter().all(|story| !goes_wrong(story)),
        "{stories:?}"
    );
    assert!(stories[1].contains("B still holds the lock") && stories[2].contains("has renewed it"));
}

#[test]
fn a_crash_blocks_others_only_without_an_expiry() {
    let stories = stories_of("problem_2_crash");
    assert!(goes_wrong(&stories[0]), "{stories:?}");
    assert!(
        stories[1..].iter().all(|story| !goes_wrong(story)),
        "{stories:?}"
    );
    assert_eq!(stories.len(), 3);
}

#[test]
fn two_holders_both_write_only_without_a_check() {
    let stories = stories_of("problem_3_two_holders");
    assert!(goes_wrong(&stories[0]), "{stories:?}");
    assert!(stories[1].contains("Err(Lost)"), "{stories:?}");
    assert!(stories[2].contains("refused: the report is"), "{stories:?}");
}
