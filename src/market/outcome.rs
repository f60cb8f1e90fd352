//! The results of a listing and of a purchase.

/// The result of a listing, and how often it had to start again because somebody else's write came
/// between.
///
/// Whatever it is, it is not half of it: unless it is [`Listed`](Self::Listed), nothing was
/// changed.
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
    /// The seller does not have the item in the inventory; in the book: nothing, `None`.
    NotOwned {
        /// Aborted attempts before this one.
        retries: u32,
    },
    /// The seller has an item of this name in the market already: a second would replace it.
    AlreadyListed {
        /// Aborted attempts before this one.
        retries: u32,
    },
    /// Others were faster for the whole time: aborted again and again, or the lock was not to be
    /// had. In the book: false.
    Contended {
        /// Aborted attempts; 0 if the lock was not to be had.
        retries: u32,
    },
}

impl Listing {
    /// True if the item is in the market now.
    #[must_use]
    pub fn is_listed(&self) -> bool {
        matches!(self, Self::Listed { .. })
    }

    /// The number of attempts that were aborted because somebody else wrote in between. The book's
    /// tables count them.
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

/// The result of a purchase, and how often it had to start again because somebody else's write
/// came between.
///
/// Whatever it is, it is not half of it: unless it is [`Bought`](Self::Bought), nothing was
/// changed. Prices and funds are in whole units of money.
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
    /// The item is the buyer's, the money the seller's.
    Bought {
        /// The price that was paid.
        price: u64,
        /// Aborted attempts before this one.
        retries: u32,
    },
    /// The item is not in the market, or not from this seller: somebody else may have bought it.
    NotForSale {
        /// Aborted attempts before this one.
        retries: u32,
    },
    /// The item has another price than the one that was offered.
    PriceChanged {
        /// The price now.
        price: u64,
        /// Aborted attempts before this one.
        retries: u32,
    },
    /// The buyer cannot pay.
    NotEnoughMoney {
        /// The price.
        price: u64,
        /// The buyer's money.
        funds: i64,
        /// Aborted attempts before this one.
        retries: u32,
    },
    /// The buyer has an item of the same name already: a set would keep only one of the two.
    AlreadyOwned {
        /// Aborted attempts before this one.
        retries: u32,
    },
    /// Others were faster for the whole time: aborted again and again, or the lock was not to be
    /// had. In the book: false.
    Contended {
        /// Aborted attempts; 0 if the lock was not to be had.
        retries: u32,
    },
}

impl Purchase {
    /// True if the item changed hands.
    #[must_use]
    pub fn is_bought(&self) -> bool {
        matches!(self, Self::Bought { .. })
    }

    /// The number of attempts that were aborted because somebody else wrote in between. The book's
    /// tables count them.
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
