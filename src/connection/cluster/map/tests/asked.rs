//! What is entered of each answer, and whose word counts for how much.

use std::{
    io::{Read, Write},
    net::TcpListener,
    slice, thread,
};

use super::*;

/// A node of a cluster that answers what was said last.
struct Told {
    address: Address,
    answer: Arc<Mutex<String>>,
}

impl Told {
    fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = Address::new("127.0.0.1", listener.local_addr().unwrap().port());
        let answer = Arc::new(Mutex::new(String::new()));
        let says = Arc::clone(&answer);
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (mut stream, says) = (stream.unwrap(), Arc::clone(&says));
                thread::spawn(move || {
                    let mut read = [0; 4_096];
                    while let Ok(length @ 1..) = stream.read(&mut read) {
                        let asked = String::from_utf8_lossy(&read[..length]);
                        let answer = if asked.contains("SLOTS") {
                            says.lock().clone()
                        } else {
                            "+OK\r\n".repeat(asked.matches('*').count())
                        };
                        stream.write_all(answer.as_bytes()).unwrap();
                    }
                });
            }
        });
        Self { address, answer }
    }

    fn says(&self, layout: &[Group], state: &str, epoch: u64) {
        let node = |node: &Node| {
            let (id, port) = (&node.id, node.address.as_ref().unwrap().port);
            let length = id.len();
            format!("*3\r\n$9\r\n127.0.0.1\r\n:{port}\r\n${length}\r\n{id}\r\n")
        };
        let group = |group: &Group| {
            let (parts, slots) = (group.replicas.len() + 3, &group.slots[0]);
            let nodes: String = [&group.master]
                .into_iter()
                .chain(&group.replicas)
                .map(node)
                .collect();
            format!(
                "*{parts}\r\n:{}\r\n:{}\r\n{nodes}",
                slots.start(),
                slots.end()
            )
        };
        let groups: String = layout.iter().map(group).collect();
        let info = format!("cluster_state:{state}\r\ncluster_current_epoch:{epoch}\r\n");
        let (shards, length) = (layout.len(), info.len());
        *self.answer.lock() = format!("*{shards}\r\n{groups}${length}\r\n{info}\r\n");
    }
}

fn ask_all(map: &Map) -> Result<()> {
    map.ask_all(
        map.asking.lock(),
        None,
        Deadline::after(Duration::from_secs(60)),
    )
}

#[test]
fn each_question_to_a_master_is_entered_though_no_other_node_answers() {
    let master = Told::new();
    let layout = layout_of(&[(&master.address, &[])]);
    let map = map_of(&layout);
    let silent = || map.known.lock().silent_masters().len();
    let answered_at = |at| map.known.lock().counts(&master.address, false, at);
    let ago = |millis| {
        Instant::now()
            .checked_sub(Duration::from_millis(millis))
            .unwrap()
    };

    master.says(&layout, "ok", 1);
    map.known.lock().was_silent(&master.address);
    ask_all(&map).unwrap();
    // Its word is all there is.
    assert_eq!((silent(), map.known.lock().is_second_best), (1, false));
    map.known.lock().was_silent(&master.address);
    answered_at(ago(2_000));
    ask_all(&map).unwrap();
    assert_eq!(silent(), 0);

    master.says(&layout, "fail", 1);
    map.known.lock().was_silent(&master.address);
    answered_at(ago(1_500));
    ask_all(&map).unwrap();
    assert!(!answered_at(Instant::now() + Duration::from_millis(1_500)));

    let nobody = known_map();
    ask_all(&nobody).unwrap_err();
    assert_eq!(nobody.known.lock().silent_masters().len(), 1);
}

#[test]
fn masters_in_question_do_not_say_that_the_cluster_is_down_and_those_that_they_name_are_asked() {
    let (masters, cut_off, new) = ([(); 4].map(|()| Told::new()), Told::new(), Told::new());
    let layout = |replica: &Told| {
        let replica = slice::from_ref(&replica.address);
        let shards = masters.each_ref().map(|master| (&master.address, replica));
        layout_of(&shards)
    };
    let in_question = || {
        let map = map_of(&layout(&cut_off));
        for master in &masters {
            map.known.lock().was_silent(&master.address);
        }
        ask_all(&map).unwrap();
        map
    };
    cut_off.says(&layout(&cut_off), "fail", 1);
    for master in &masters {
        master.says(&layout(&new), "ok", 2);
    }
    let now = layout_of(&[(&new.address, &[masters[0].address.clone()])]);
    new.says(&now, "ok", 2);
    let map = in_question();
    let shard = map.known_shard_of("key").unwrap();
    assert_eq!(map.place(shard).unwrap().port, new.address.port);
    // Where it is not well either, they are believed, and are asked again soon. How far they count is in question as well.
    new.says(&now, "fail", 1);
    let map = in_question();
    let known = map.known.lock();
    assert!(known.is_second_best && known.config_epoch == 1);
}

#[test]
fn five_that_are_cut_off_do_not_keep_a_master_from_being_asked_whose_word_is_in_question() {
    let (master, cut_off) = (Told::new(), [(); 5].map(|()| Told::new()));
    let replicas = cut_off.each_ref().map(|node| node.address.clone());
    let layout = layout_of(&[(&master.address, &replicas)]);
    for node in &cut_off {
        node.says(&layout, "fail", 1);
    }
    master.says(&layout, "ok", 1);
    let map = map_of(&layout);
    map.known.lock().was_silent(&master.address);
    let long_ago = Instant::now().checked_sub(Duration::from_secs(2)).unwrap();
    map.known.lock().counts(&master.address, false, long_ago);
    ask_all(&map).unwrap();
    assert!(!map.known.lock().is_second_best);
}

/// Somebody has asked, and waits for the answer. Who comes now wants to know what has happened until now.
#[test]
fn an_answer_to_what_was_asked_before_is_no_news() {
    let master = Told::new();
    let layout = layout_of(&[(&master.address, &[])]);
    master.says(&layout, "ok", 1);
    let map = map_of(&layout);
    let another = map.asking.lock();
    let asked = Instant::now();
    map.known.lock().asked = Some(asked);
    thread::scope(|scope| {
        let wants = scope.spawn(|| map.look_anew(Deadline::after(Duration::from_secs(60))));
        // If it comes later than that, it asks in any case.
        thread::sleep(Duration::from_millis(50));
        map.known.lock().answered = Some(Instant::now());
        drop(another);
        wants.join().unwrap().unwrap();
    });
    assert!(map.known.lock().asked > Some(asked));
}

/// As where the URL names the host, and the nodes each other's numbers.
#[test]
fn a_silent_master_is_in_question_by_each_of_its_names() {
    let (silent, other) = (Told::new(), Told::new());
    let by_name = Address::new("localhost", silent.address.port);
    let replica = slice::from_ref(&other.address);
    let before = layout_of(&[(&silent.address, replica)]);
    let now = layout_of(&[(&other.address, slice::from_ref(&silent.address))]);
    silent.says(&before, "ok", 1);
    for state in ["ok", "fail"] {
        other.says(&now, state, 2);
        let mut map = map_of(&before);
        map.seeds = vec![by_name.clone()];
        map.asking.lock().last = Some(by_name.clone());
        map.known.lock().was_silent(&silent.address);
        ask_all(&map).unwrap();
        let shard = map.known_shard_of("key").unwrap();
        assert_eq!(
            map.place(shard).unwrap().port,
            other.address.port,
            "{state}"
        );
    }
}
