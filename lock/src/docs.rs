//! Guides, by question.
//!
//! | I want to … | guide |
//! | --- | --- |
//! | make a handler a singleton, limit how many run at a time, lock several keys | [Locks](self::locks) |
//! | let the newest invocation win, combine two limits, break a circuit, close a key for maintenance | [Locks](self::locks#the-newest-wins) |
//! | wait for a key that is held | [Waiting](self::waiting) |
//! | hold a lock across processes, in a state machine or a pipeline | [Locks across processes](self::tickets) |
//! | hold a lock in a durable function | the crate [`lambda-lock-durable`](https://docs.rs/lambda-lock-durable) |
//! | answer a duplicate with the first run's result, and choose what follows a crash | [Idempotency](self::idempotency) |
//! | make an HTTP API idempotent by `Idempotency-Key` | [HTTP requests](self::http) |
//! | consume an SQS queue | [SQS queues](self::sqs) |
//! | consume a Kinesis or DynamoDB stream or a Kafka topic, and set up its mapping | [Streams](self::streams) |
//! | choose lease, timeout, minimum hold, window and clock skew | [Choosing times](self::choosing_times) |
//! | test my handler with crashes, wrong clocks and a bad network | [Testing](self::testing) |
//! | deploy: table, IAM policy, release profile, all requests | [Deploying and permissions](self::deploying) |
//! | make cold starts short | [Cold starts](self::cold_starts) |
//! | watch and operate: metrics, traces, alarms, the program `lambda-lock` | [Operating](self::operating) |
//! | repair what an alarm or an error reports | [Runbook](self::runbook) |
//! | move from Powertools, or share a table with it | [Powertools](self::powertools) |
//! | understand how it works: the row and its requests | [Concepts and protocol](self::concepts) |
//! | know what it costs in time | [Performance](self::performance) |
//! | know what checks its guarantees, and repeat it | [The proof](self::proof) |
//! | compare it with other lock clients and with Powertools, and come from one of them | [Comparison](self::comparison) |
//! | know why it is built this way | [Design decisions](self::design) |
// The guides name what needs a feature. Without this, each begins with a list of all features.
#![cfg_attr(docsrs, doc(auto_cfg = false))]
// Documentation only. The guides link to items of these features.
#![cfg(all(
    any(doc, doctest),
    feature = "embedded",
    feature = "http",
    feature = "kafka",
    feature = "metrics",
    feature = "sqs",
    feature = "streams"
))]

/// Reads a guide. The guides link to each other, and to pictures, by names that are defined at the end of each file, for
/// readers of the repository. The definitions here come first, so they win: the same names lead to the modules and to the
/// pictures' text, because rustdoc copies no files. `.ci/pictures` writes `pictures.txt`.
macro_rules! guide {
    ($file:literal) => {
        concat!(
            "[choosing_times]: crate::docs::choosing_times\n",
            "[cold_starts]: crate::docs::cold_starts\n",
            "[comparison]: crate::docs::comparison\n",
            "[concepts]: crate::docs::concepts\n",
            "[deploying]: crate::docs::deploying\n",
            "[design]: crate::docs::design\n",
            "[http]: crate::docs::http\n",
            "[idempotency]: crate::docs::idempotency\n",
            "[locks]: crate::docs::locks\n",
            "[operating]: crate::docs::operating\n",
            "[performance]: crate::docs::performance\n",
            "[powertools]: crate::docs::powertools\n",
            "[proof]: crate::docs::proof\n",
            "[runbook]: crate::docs::runbook\n",
            "[sqs]: crate::docs::sqs\n",
            "[streams]: crate::docs::streams\n",
            "[testing]: crate::docs::testing\n",
            "[tickets]: crate::docs::tickets\n",
            "[waiting]: crate::docs::waiting\n",
            "[durable]: https://docs.rs/lambda-lock-durable\n",
            "[machine]: https://docs.rs/crate/lambda-lock/latest/source/docs/state_machine.asl.json\n",
            "[openapi]: https://docs.rs/crate/lambda-lock/latest/source/docs/openapi.yaml\n",
            "[skew]: crate::docs::choosing_times#what-the-clock-skew-costs\n",
            "[problems]: crate::docs::http#the-statuses\n",
            "[unfinished]: crate::docs::runbook#a-run-did-not-finish\n",
            "[window]: crate::docs::choosing_times#window\n",
            include_str!("../docs/pictures.txt"),
            "\n",
            include_str!($file)
        )
    };
}

#[doc = guide!("../docs/locks.md")]
pub mod locks {}

#[doc = guide!("../docs/waiting.md")]
pub mod waiting {}

#[doc = guide!("../docs/tickets.md")]
pub mod tickets {}

#[doc = guide!("../docs/idempotency.md")]
pub mod idempotency {}

#[doc = guide!("../docs/http.md")]
pub mod http {}

#[doc = guide!("../docs/sqs.md")]
pub mod sqs {}

#[doc = guide!("../docs/streams.md")]
pub mod streams {}

#[doc = guide!("../docs/choosing_times.md")]
pub mod choosing_times {}

#[doc = guide!("../docs/testing.md")]
pub mod testing {}

#[doc = guide!("../docs/deploying.md")]
pub mod deploying {}

#[doc = guide!("../docs/cold_starts.md")]
pub mod cold_starts {}

#[doc = guide!("../docs/operating.md")]
pub mod operating {}

#[doc = guide!("../docs/runbook.md")]
pub mod runbook {}

#[doc = guide!("../docs/powertools.md")]
pub mod powertools {}

#[doc = guide!("../docs/concepts.md")]
pub mod concepts {}

#[doc = guide!("../docs/performance.md")]
pub mod performance {}

#[doc = guide!("../docs/proof.md")]
pub mod proof {}

#[doc = guide!("../docs/comparison.md")]
pub mod comparison {}

#[doc = guide!("../docs/design.md")]
pub mod design {}
