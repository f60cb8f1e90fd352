//! The plain functions of every kind of lock behind one interface, so that a test covers them all.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::Duration;

use leasehold::{
    Owner, Result, Token,
    book::article::{one_hash, two_key},
    recipes::{
        mutex::{self, End},
        read_write,
        reentrant::{self, Release},
        semaphore,
    },
};
use redis::Connection;

/// The lease of each acquire.
pub const LEASE: Duration = Duration::from_secs(10);
/// The lease of each renewal.
pub const LONGER: Duration = Duration::from_secs(20);
/// The key beside `lock:a`.
pub const COMPANION: &str = "{lock:a}:lease";

const LEASES: one_hash::Lifetimes = one_hash::Lifetimes {
    read: LEASE,
    write: LEASE,
    key: LEASE,
};

/// The arguments are a connection, the lock's name and the token.
pub type Call = fn(&mut Connection, &str, &Token) -> Result<bool>;

/// The same with the longest wait.
pub type Wait = fn(&mut Connection, &str, &Token, Duration) -> Result<bool>;

#[derive(Clone, Copy)]
pub struct Kind {
    pub name: &'static str,
    /// The key of the lock `a`.
    pub key: &'static str,
    pub try_acquire: Call,
    /// The bare mutex has none.
    pub acquire: Option<Wait>,
    /// The article's editions have none.
    pub renew: Option<Call>,
    pub release: Call,
    /// A kind that is refused beside this one.
    rival: fn() -> Kind,
}

fn mutex_end() -> End {
    End::After(LEASE)
}

fn owner() -> Owner {
    Owner::new("ours").unwrap()
}

fn other() -> Owner {
    Owner::new("theirs").unwrap()
}

fn keys(name: &str) -> two_key::Keys {
    two_key::Keys::new(format!("{{{name}}}:read"), format!("{{{name}}}:write")).unwrap()
}

pub const MUTEX: Kind = Kind {
    name: "mutex",
    key: "lock:a",
    try_acquire: |conn, name, token| {
        Ok(mutex::try_acquire(conn, name, token, mutex_end())?.is_some())
    },
    acquire: Some(|conn, name, token, wait| {
        Ok(mutex::acquire(conn, name, token, wait, mutex_end())?.is_some())
    }),
    renew: Some(|conn, name, token| mutex::renew(conn, name, token, LONGER)),
    release: |conn, name, token| mutex::release(conn, name, token),
    rival: || MUTEX,
};

pub const BARE: Kind = Kind {
    name: "bare mutex",
    try_acquire: |conn, name, token| mutex::try_acquire_unfenced(conn, name, token, LEASE),
    acquire: None,
    ..MUTEX
};

pub const LEVEL: Kind = Kind {
    name: "level",
    key: "lock:a",
    try_acquire: |conn, name, token| {
        Ok(reentrant::try_acquire(conn, name, &owner(), token, LEASE)?.is_some())
    },
    acquire: Some(|conn, name, token, wait| {
        Ok(reentrant::acquire(conn, name, &owner(), token, wait, LEASE)?.is_some())
    }),
    renew: Some(|conn, name, token| reentrant::renew(conn, name, &owner(), token, LONGER)),
    release: |conn, name, token| {
        Ok(reentrant::release(conn, name, &owner(), token)? != Release::NotHeld)
    },
    rival: || LEVEL_OF_ANOTHER,
};

const LEVEL_OF_ANOTHER: Kind = Kind {
    name: "level of another owner",
    try_acquire: |conn, name, token| {
        Ok(reentrant::try_acquire(conn, name, &other(), token, LEASE)?.is_some())
    },
    acquire: None,
    renew: None,
    release: |conn, name, token| {
        Ok(reentrant::release(conn, name, &other(), token)? != Release::NotHeld)
    },
    rival: || LEVEL,
    ..LEVEL
};

/// The only permit.
pub const PERMIT: Kind = Kind {
    name: "permit",
    key: "lock:a",
    try_acquire: |conn, name, token| semaphore::try_acquire(conn, name, 1, token, LEASE),
    acquire: Some(|conn, name, token, wait| semaphore::acquire(conn, name, 1, token, wait, LEASE)),
    renew: Some(|conn, name, token| semaphore::renew(conn, name, token, LONGER)),
    release: |conn, name, token| semaphore::release(conn, name, token),
    rival: || PERMIT,
};

pub const READER: Kind = Kind {
    name: "reader",
    key: "lock:a",
    try_acquire: |conn, name, token| read_write::try_acquire_read(conn, name, token, LEASE),
    acquire: Some(|conn, name, token, wait| {
        read_write::acquire_read(conn, name, token, wait, LEASE)
    }),
    renew: Some(|conn, name, token| read_write::renew_read(conn, name, token, LONGER)),
    release: |conn, name, token| read_write::release_read(conn, name, token),
    rival: || WRITER,
};

pub const WRITER: Kind = Kind {
    name: "writer",
    key: "lock:a",
    try_acquire: |conn, name, token| {
        Ok(read_write::try_acquire_write(conn, name, token, LEASE)?.is_some())
    },
    acquire: Some(|conn, name, token, wait| {
        Ok(read_write::acquire_write(conn, name, token, wait, LEASE)?.is_some())
    }),
    renew: Some(|conn, name, token| read_write::renew_write(conn, name, token, LONGER)),
    release: |conn, name, token| read_write::release_write(conn, name, token),
    rival: || READER,
};

const TWO_KEY_READER: Kind = Kind {
    name: "two_key reader",
    key: "{a}:read",
    try_acquire: |conn, name, token| {
        two_key::acquire_read(conn, &keys(name), token, Duration::ZERO, LEASE)
    },
    acquire: Some(|conn, name, token, wait| {
        two_key::acquire_read(conn, &keys(name), token, wait, LEASE)
    }),
    renew: None,
    release: |conn, name, token| two_key::release_read(conn, &keys(name), token),
    rival: || TWO_KEY_WRITER,
};

const TWO_KEY_WRITER: Kind = Kind {
    name: "two_key writer",
    key: "{a}:write",
    try_acquire: |conn, name, token| {
        two_key::acquire_write(conn, &keys(name), token, Duration::ZERO, LEASE)
    },
    acquire: Some(|conn, name, token, wait| {
        two_key::acquire_write(conn, &keys(name), token, wait, LEASE)
    }),
    renew: None,
    release: |conn, name, token| two_key::release_write(conn, &keys(name), token),
    rival: || TWO_KEY_READER,
};

const ONE_HASH_READER: Kind = Kind {
    name: "one_hash reader",
    key: "a",
    try_acquire: |conn, name, token| {
        one_hash::acquire_read(conn, name, token, Duration::ZERO, &LEASES)
    },
    acquire: Some(|conn, name, token, wait| {
        one_hash::acquire_read(conn, name, token, wait, &LEASES)
    }),
    renew: None,
    release: |conn, name, token| one_hash::release_read(conn, name, token, &LEASES),
    rival: || ONE_HASH_WRITER,
};

const ONE_HASH_WRITER: Kind = Kind {
    name: "one_hash writer",
    key: "a",
    try_acquire: |conn, name, token| {
        one_hash::acquire_write(conn, name, token, Duration::ZERO, &LEASES)
    },
    acquire: Some(|conn, name, token, wait| {
        one_hash::acquire_write(conn, name, token, wait, &LEASES)
    }),
    renew: None,
    release: |conn, name, token| one_hash::release_write(conn, name, token, &LEASES),
    rival: || ONE_HASH_READER,
};

/// Readers and writers of each recipe.
pub const READ_WRITE: [[Kind; 2]; 3] = [
    [READER, WRITER],
    [TWO_KEY_READER, TWO_KEY_WRITER],
    [ONE_HASH_READER, ONE_HASH_WRITER],
];

/// The kinds of `recipes`.
pub const OURS: &[Kind] = &[MUTEX, BARE, LEVEL, PERMIT, READER, WRITER];

/// Those of the article's editions.
pub const ARTICLES: &[Kind] = &[
    TWO_KEY_READER,
    TWO_KEY_WRITER,
    ONE_HASH_READER,
    ONE_HASH_WRITER,
];

/// Every kind.
pub fn kinds() -> Vec<Kind> {
    [OURS, ARTICLES].concat()
}

impl Kind {
    /// Acquires by `acquire` if there is a wait, unless the kind has none.
    pub fn take(
        self,
        wait: Option<Duration>,
        conn: &mut Connection,
        name: &str,
        token: &Token,
    ) -> Result<bool> {
        match (self.acquire, wait) {
            (Some(acquire), Some(wait)) => acquire(conn, name, token, wait),
            _ => (self.try_acquire)(conn, name, token),
        }
    }

    /// The functions that need a hold.
    pub fn others(self) -> Vec<(String, Call)> {
        let mut others = vec![(format!("{}: release", self.name), self.release)];
        others.extend(
            self.renew
                .map(|renew| (format!("{}: renew", self.name), renew)),
        );
        others
    }

    /// A kind that is refused beside this one.
    pub fn rival(self) -> Self {
        (self.rival)()
    }

    /// True for readers and writers.
    pub fn is_read_write(self) -> bool {
        READ_WRITE
            .as_flattened()
            .iter()
            .any(|it| it.name == self.name)
    }

    /// Its first acquire takes no script.
    pub fn is_bare(self) -> bool {
        self.name == BARE.name
    }

    /// Acquires and releases the lock `a`. False if it is held.
    pub fn use_once(self, conn: &mut Connection) -> bool {
        let token = Token::random();
        (self.try_acquire)(conn, "a", &token).unwrap() && (self.release)(conn, "a", &token).unwrap()
    }
}
