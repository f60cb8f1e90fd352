//! The reader and writer functions of the three read-write locks behind one interface, so a test
//! covers all of them.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::Duration;

use leasehold::{
    Result, Token,
    book::article::{one_hash, two_key},
    recipes::read_write,
};
use redis::Connection;

/// The lease of each acquire.
pub const LEASE: Duration = Duration::from_secs(10);
/// The lease of each renewal.
pub const LONGER: Duration = Duration::from_secs(20);

const LEASES: one_hash::Lifetimes = one_hash::Lifetimes {
    read: LEASE,
    write: LEASE,
    key: LEASE,
};

/// The arguments are a connection, the lock's name and the token.
pub type Call = fn(&mut Connection, &str, &Token) -> Result<bool>;

#[derive(Clone, Copy)]
pub struct Side {
    pub recipe: &'static str,
    /// `read` or `write`.
    pub mode: &'static str,
    pub try_acquire: Call,
    pub acquire: fn(&mut Connection, &str, &Token, Duration) -> Result<bool>,
    pub renew: Option<Call>,
    pub release: Call,
}

/// Readers and writers of each recipe.
pub const RECIPES: [[Side; 2]; 3] = [
    [
        Side {
            recipe: "read_write",
            mode: "read",
            try_acquire: |conn, name, token| read_write::try_acquire_read(conn, name, token, LEASE),
            acquire: |conn, name, token, wait| {
                read_write::acquire_read(conn, name, token, wait, LEASE)
            },
            renew: Some(|conn, name, token| read_write::renew_read(conn, name, token, LONGER)),
            release: |conn, name, token| read_write::release_read(conn, name, token),
        },
        Side {
            recipe: "read_write",
            mode: "write",
            try_acquire: |conn, name, token| {
                let grant = read_write::try_acquire_write(conn, name, token, LEASE)?;
                Ok(grant.is_some())
            },
            acquire: |conn, name, token, wait| {
                let grant = read_write::acquire_write(conn, name, token, wait, LEASE)?;
                Ok(grant.is_some())
            },
            renew: Some(|conn, name, token| read_write::renew_write(conn, name, token, LONGER)),
            release: |conn, name, token| read_write::release_write(conn, name, token),
        },
    ],
    [
        Side {
            recipe: "two_key",
            mode: "read",
            try_acquire: |conn, name, token| {
                two_key::acquire_read(conn, &keys(name), token, Duration::ZERO, LEASE)
            },
            acquire: |conn, name, token, wait| {
                two_key::acquire_read(conn, &keys(name), token, wait, LEASE)
            },
            renew: None,
            release: |conn, name, token| two_key::release_read(conn, &keys(name), token),
        },
        Side {
            recipe: "two_key",
            mode: "write",
            try_acquire: |conn, name, token| {
                two_key::acquire_write(conn, &keys(name), token, Duration::ZERO, LEASE)
            },
            acquire: |conn, name, token, wait| {
                two_key::acquire_write(conn, &keys(name), token, wait, LEASE)
            },
            renew: None,
            release: |conn, name, token| two_key::release_write(conn, &keys(name), token),
        },
    ],
    [
        Side {
            recipe: "one_hash",
            mode: "read",
            try_acquire: |conn, name, token| {
                one_hash::acquire_read(conn, name, token, Duration::ZERO, &LEASES)
            },
            acquire: |conn, name, token, wait| {
                one_hash::acquire_read(conn, name, token, wait, &LEASES)
            },
            renew: None,
            release: |conn, name, token| one_hash::release_read(conn, name, token, &LEASES),
        },
        Side {
            recipe: "one_hash",
            mode: "write",
            try_acquire: |conn, name, token| {
                one_hash::acquire_write(conn, name, token, Duration::ZERO, &LEASES)
            },
            acquire: |conn, name, token, wait| {
                one_hash::acquire_write(conn, name, token, wait, &LEASES)
            },
            renew: None,
            release: |conn, name, token| one_hash::release_write(conn, name, token, &LEASES),
        },
    ],
];

impl Side {
    /// Each function with its name, and whether it needs a hold.
    pub fn functions(self) -> Vec<(String, bool, Call)> {
        let name = |verb: &str| format!("{}::{verb}_{}", self.recipe, self.mode);
        let mut functions = vec![
            (name("try_acquire"), false, self.try_acquire),
            (name("release"), true, self.release),
        ];
        functions.extend(self.renew.map(|renew| (name("renew"), true, renew)));
        functions
    }
}

fn keys(name: &str) -> two_key::Keys {
    two_key::Keys::new(format!("{{{name}}}:read"), format!("{{{name}}}:write")).unwrap()
}
