//! Guides, by question.
//!
//! | I want to … | guide |
//! | --- | --- |
//! | understand how a lock works, and what a holder may not rely on | [Concepts and protocol](self::concepts) |
//! | choose lease, wait, timeout, window and visibility timeout | [Choosing times](self::choosing_times) |
//! | consume a Kinesis or DynamoDB stream, and set up its mapping | [Streams](self::streams) |
//! | hold a lock across processes, in a state machine or a pipeline | [Locks across processes](self::tickets) |
//! | make an HTTP API idempotent by `Idempotency-Key` | [HTTP requests](self::http) |
//! | test my handler with crashes, wrong clocks and a bad network | [Testing](self::testing) |
//! | deploy: release profile, IAM policy, table, example stack | [Deploying and permissions](self::deploying) |
//! | make cold starts short | [Cold starts](self::cold_starts) |
//! | move from Powertools, or share a table with it | [Powertools](self::powertools) |
//! | watch and operate: metrics, traces, alarms, the program `lambda-lock` | [Operating](self::operating) |
//! | know what it costs in time and requests | [Performance](self::performance) |
//! | compare it with other lock clients and with Powertools | [Comparison](self::comparison) |
//! | know why it is built this way | [Design decisions](self::design) |
// Documentation only. The guides link to items of these features.
#![cfg(all(
    any(doc, doctest),
    feature = "embedded",
    feature = "http",
    feature = "metrics",
    feature = "sqs",
    feature = "streams"
))]

/// Reads a guide. The guides link to each other by names that are defined at the end of each file, for readers of the
/// repository. The definitions here come first, so they win: the same names lead to the modules.
macro_rules! guide {
    ($file:literal) => {
        concat!(
            "[choosing_times]: crate::docs::choosing_times\n",
            "[cold_starts]: crate::docs::cold_starts\n",
            "[comparison]: crate::docs::comparison\n",
            "[concepts]: crate::docs::concepts\n",
            "[design]: crate::docs::design\n",
            "[http]: crate::docs::http\n",
            "[operating]: crate::docs::operating\n",
            "[performance]: crate::docs::performance\n",
            "[powertools]: crate::docs::powertools\n",
            "[streams]: crate::docs::streams\n",
            "[testing]: crate::docs::testing\n",
            "[tickets]: crate::docs::tickets\n\n",
            include_str!($file)
        )
    };
}

#[doc = guide!("../docs/concepts.md")]
pub mod concepts {}

#[doc = guide!("../docs/choosing_times.md")]
pub mod choosing_times {}

#[doc = guide!("../docs/streams.md")]
pub mod streams {}

#[doc = guide!("../docs/tickets.md")]
pub mod tickets {}

#[doc = guide!("../docs/http.md")]
pub mod http {}

#[doc = guide!("../docs/testing.md")]
pub mod testing {}

#[doc = guide!("../docs/deploying.md")]
pub mod deploying {}

#[doc = guide!("../docs/cold_starts.md")]
pub mod cold_starts {}

#[doc = guide!("../docs/powertools.md")]
pub mod powertools {}

#[doc = guide!("../docs/operating.md")]
pub mod operating {}

#[doc = guide!("../docs/performance.md")]
pub mod performance {}

#[doc = guide!("../docs/comparison.md")]
pub mod comparison {}

#[doc = guide!("../docs/design.md")]
pub mod design {}
