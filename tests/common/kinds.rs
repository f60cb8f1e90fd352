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

const fn lifetimes(lease: Duration) -> one_hash::Lifetimes {
    one_hash::Lifetimes {
        read: lease,
        write: lease,
        key: lease,
    }
}

/// The arguments are a connection, the lock's name and the token.
pub type Call = fn(&mut Connection, &str, &Token) -> Result<bool>;

/// The same with the lease.
pub type Leased = fn(&mut Connection, &str, &Token, Duration) -> Result<bool>;

/// A function of a kind, called without a lease.
pub type Other = Box<dyn Fn(&mut Connection, &str, &Token) -> Result<bool>>;

/// The same with the longest wait.
pub type Wait = fn(&mut Connection, &str, &Token, Duration) -> Result<bool>;

#[derive(Clone, Copy)]
pub struct Kind {
    pub name: &'static str,
    /// The key of the lock `a`.
    pub key: &'static str,
    /// Asks once.
    pub grant: Leased,
    /// The bare mutex has none.
    pub acquire: Option<Wait>,
    /// The article's editions have none.
    pub renew: Option<Leased>,
    pub release: Call,
    /// A kind that is refused beside this one.
    rival: fn() -> Kind,
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
    grant: |conn, name, token, lease| {
        Ok(mutex::try_acquire(conn, name, token, End::After(lease))?.is_some())
    },
    acquire: Some(|conn, name, token, wait| {
        Ok(mutex::acquire(conn, name, token, wait, End::After(LEASE))?.is_some())
    }),
    renew: Some(mutex::renew),
    release: |conn, name, token| mutex::release(conn, name, token),
    rival: || MUTEX,
};

pub const BARE: Kind = Kind {
    name: "bare mutex",
    grant: |conn, name, token, lease| mutex::try_acquire_unfenced(conn, name, token, lease),
    acquire: None,
    ..MUTEX
};

pub const LEVEL: Kind = Kind {
    name: "level",
    key: "lock:a",
    grant: |conn, name, token, lease| {
        Ok(reentrant::try_acquire(conn, name, &owner(), token, lease)?.is_some())
    },
    acquire: Some(|conn, name, token, wait| {
        Ok(reentrant::acquire(conn, name, &owner(), token, wait, LEASE)?.is_some())
    }),
    renew: Some(|conn, name, token, lease| reentrant::renew(conn, name, &owner(), token, lease)),
    release: |conn, name, token| {
        Ok(reentrant::release(conn, name, &owner(), token)? != Release::NotHeld)
    },
    rival: || LEVEL_OF_ANOTHER,
};

const LEVEL_OF_ANOTHER: Kind = Kind {
    name: "level of another owner",
    grant: |conn, name, token, lease| {
        Ok(reentrant::try_acquire(conn, name, &other(), token, lease)?.is_some())
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
    grant: |conn, name, token, lease| semaphore::try_acquire(conn, name, 1, token, lease),
    acquire: Some(|conn, name, token, wait| semaphore::acquire(conn, name, 1, token, wait, LEASE)),
    renew: Some(semaphore::renew),
    release: |conn, name, token| semaphore::release(conn, name, token),
    rival: || PERMIT,
};

pub const READER: Kind = Kind {
    name: "reader",
    key: "lock:a",
    grant: |conn, name, token, lease| read_write::try_acquire_read(conn, name, token, lease),
    acquire: Some(|conn, name, token, wait| {
        read_write::acquire_read(conn, name, token, wait, LEASE)
    }),
    renew: Some(read_write::renew_read),
    release: |conn, name, token| read_write::release_read(conn, name, token),
    rival: || WRITER,
};

pub const WRITER: Kind = Kind {
    name: "writer",
    key: "lock:a",
    grant: |conn, name, token, lease| {
        Ok(read_write::try_acquire_write(conn, name, token, lease)?.is_some())
    },
    acquire: Some(|conn, name, token, wait| {
        Ok(read_write::acquire_write(conn, name, token, wait, LEASE)?.is_some())
    }),
    renew: Some(read_write::renew_write),
    release: |conn, name, token| read_write::release_write(conn, name, token),
    rival: || READER,
};

const TWO_KEY_READER: Kind = Kind {
    name: "two_key reader",
    key: "{a}:read",
    grant: |conn, name, token, lease| {
        two_key::acquire_read(conn, &keys(name), token, Duration::ZERO, lease)
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
    grant: |conn, name, token, lease| {
        two_key::acquire_write(conn, &keys(name), token, Duration::ZERO, lease)
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
    grant: |conn, name, token, lease| {
        one_hash::acquire_read(conn, name, token, Duration::ZERO, &lifetimes(lease))
    },
    acquire: Some(|conn, name, token, wait| {
        one_hash::acquire_read(conn, name, token, wait, &lifetimes(LEASE))
    }),
    renew: None,
    release: |conn, name, token| one_hash::release_read(conn, name, token, &lifetimes(LEASE)),
    rival: || ONE_HASH_WRITER,
};

const ONE_HASH_WRITER: Kind = Kind {
    name: "one_hash writer",
    key: "a",
    grant: |conn, name, token, lease| {
        one_hash::acquire_write(conn, name, token, Duration::ZERO, &lifetimes(lease))
    },
    acquire: Some(|conn, name, token, wait| {
        one_hash::acquire_write(conn, name, token, wait, &lifetimes(LEASE))
    }),
    renew: None,
    release: |conn, name, token| one_hash::release_write(conn, name, token, &lifetimes(LEASE)),
    rival: || ONE_HASH_READER,
};

/// Readers and writers of each recipe.
pub const READ_WRITE: [[Kind; 2]; 3] = [
    [READER, WRITER],
    [TWO_KEY_READER, TWO_KEY_WRITER],
    [ONE_HASH_READER, ONE_HASH_WRITER],
];

pub const ONE_OF_TWO_PERMITS: Kind = Kind {
    name: "one of two permits",
    grant: |conn, name, token, lease| semaphore::try_acquire(conn, name, 2, token, lease),
    acquire: None,
    ..PERMIT
};

/// Two may hold these at once, each for its own time: the article's hash has no end of a hold, and
/// each caller says how long one lasts.
pub const SHARED: [Kind; 4] = [LEVEL, ONE_OF_TWO_PERMITS, READER, TWO_KEY_READER];

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
            _ => self.try_acquire(conn, name, token),
        }
    }

    /// Asks once, for [`LEASE`].
    pub fn try_acquire(self, conn: &mut Connection, name: &str, token: &Token) -> Result<bool> {
        (self.grant)(conn, name, token, LEASE)
    }

    /// The functions that need a hold.
    pub fn others(self) -> Vec<(String, Other)> {
        let release = self.release;
        let mut others: Vec<(String, Other)> =
            vec![(format!("{}: release", self.name), Box::new(release))];
        if let Some(renew) = self.renew {
            let renew = move |conn: &mut Connection, name: &str, token: &Token| {
                renew(conn, name, token, LONGER)
            };
            others.push((format!("{}: renew", self.name), Box::new(renew)));
        }
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
        self.try_acquire(conn, "a", &token).unwrap() && (self.release)(conn, "a", &token).unwrap()
    }
}
