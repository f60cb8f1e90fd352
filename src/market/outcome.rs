//! The results of a listing and of a purchase.

/// The result of a listing, with the number of attempts that another client's write aborted.
///
/// Unless it is [`Listed`](Self::Listed), nothing has changed.
///
/// ```
/// use leasehold::Listing;
///
/// let listing = Listing::Listed { retries: 2 };
/// assert!(listing.is_listed());
/// assert_eq!(listing.retries(), 2);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "it says whether anything has changed"]
#[non_exhaustive]
pub enum Listing {
    /// The item has left the seller's inventory and is in the market.
    Listed {
        /// Aborted attempts before this one.
        retries: u32,
    },
    /// The item is not in the seller's inventory. The book returns `None`.
    NotOwned {
        /// Aborted attempts before this one.
        retries: u32,
    },
    /// The seller already has an item of this name in the market; a second would replace it.
    AlreadyListed {
        /// Aborted attempts before this one.
        retries: u32,
    },
    /// Every attempt was aborted, or the lock was not acquired in time. The book returns false.
    Contended {
        /// Aborted attempts; 0 if the lock was not acquired.
        retries: u32,
    },
}

impl Listing {
    /// True if the item is in the market now.
    #[must_use]
    pub fn is_listed(&self) -> bool {
        matches!(self, Self::Listed { .. })
    }

    /// The number of attempts that another client's write aborted. The book's tables count them.
    #[must_use]
    pub fn retries(&self) -> u32 {
        match *self {
            Self::Listed { retries }
            | Self::NotOwned { retries }
            | Self::AlreadyListed { retries }
            | Self::Contended { retries } => retries,
        }
    }
}

/// The result of a purchase, with the number of attempts that another client's write aborted.
///
/// Unless it is [`Bought`](Self::Bought), nothing has changed. Prices and funds are in whole units
/// of money.
///
/// ```
/// use leasehold::Purchase;
///
/// let purchase = Purchase::NotEnoughMoney { price: 97, funds: 43, retries: 0 };
/// assert!(!purchase.is_bought());
/// assert_eq!(purchase.retries(), 0);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "it says whether anything has changed"]
#[non_exhaustive]
pub enum Purchase {
    /// The buyer has the item and the seller the money.
    Bought {
        /// The price that was paid.
        price: u64,
        /// Aborted attempts before this one.
        retries: u32,
    },
    /// This seller does not offer the item; somebody else may have bought it.
    NotForSale {
        /// Aborted attempts before this one.
        retries: u32,
    },
    /// The item's price is not the one that the buyer agreed to.
    PriceChanged {
        /// The current price.
        price: u64,
        /// Aborted attempts before this one.
        retries: u32,
    },
    /// The buyer's funds are less than the price.
    NotEnoughMoney {
        /// The price.
        price: u64,
        /// The buyer's funds.
        funds: i64,
        /// Aborted attempts before this one.
        retries: u32,
    },
    /// The buyer already has an item of this name; a set would keep only one of the two.
    AlreadyOwned {
        /// Aborted attempts before this one.
        retries: u32,
    },
    /// Every attempt was aborted, or the lock was not acquired in time. The book returns false.
    Contended {
        /// Aborted attempts; 0 if the lock was not acquired.
        retries: u32,
    },
}

impl Purchase {
    /// True if the item changed hands.
    #[must_use]
    pub fn is_bought(&self) -> bool {
        matches!(self, Self::Bought { .. })
    }

    /// The number of attempts that another client's write aborted. The book's tables count them.
    #[must_use]
    pub fn retries(&self) -> u32 {
        match *self {
            Self::Bought { retries, .. }
            | Self::NotForSale { retries }
            | Self::PriceChanged { retries, .. }
            | Self::NotEnoughMoney { retries, .. }
            | Self::AlreadyOwned { retries }
            | Self::Contended { retries } => retries,
        }
    }
}
