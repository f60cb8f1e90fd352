//! The addresses of a cluster's nodes, as they are reached from here.

use std::{fmt, sync::Arc};

use super::connector::Address;

type Translation = dyn Fn(&str, u16) -> (String, u16) + Send + Sync;

/// Translates the address that a node announces into the one that reaches it from here.
#[derive(Clone)]
pub(crate) struct AddressMap(pub(crate) Arc<Translation>);

impl AddressMap {
    pub(crate) fn reached(map: Option<&Self>, said: Address) -> Address {
        let Some(Self(map)) = map else {
            return said;
        };
        let (host, port) = map(&said.host, said.port);
        Address { host, port }
    }
}

impl fmt::Debug for AddressMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AddressMap")
    }
}
