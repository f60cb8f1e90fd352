//! What each kind of lock does on the server, as plain functions on one connection.

pub mod simple;
mod wait;
