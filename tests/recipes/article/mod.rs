//! The article's two editions of a read-write lock.

mod one_hash;
mod one_hash_traps;
mod two_key;
