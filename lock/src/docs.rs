#![doc = concat!(include_str!("../docs/links.txt"), "\n", include_str!("../docs/README.md"))]
// The guides name items that need a feature. Without this, each begins with a list of all features.
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

/// Reads the guides. `.ci/guides` writes the targets of their links twice: for readers of the repository at the end of each
/// page, and for rustdoc into `links.txt`. The definitions there come first, so they win.
macro_rules! guides {
    ($(#[$about:meta])* $group:ident: $($page:ident)*) => {
        $(#[$about])*
        pub mod $group {
            $(
                #[doc = concat!(
                    include_str!("../docs/links.txt"),
                    "\n",
                    include_str!(concat!("../docs/", stringify!($group), "/", stringify!($page), ".md")),
                )]
                pub mod $page {}
            )*
        }
    };
}

guides! {
    /// What the terms mean, and which part you need.
    learn:
        tour duplicates which concepts
}

guides! {
    /// One problem a page, with the code, an event and a test.
    recipes:
        cron rebuild idempotent webhook http sqs streams objects limits rates keys newest workflows
        deployments containers
}

guides! {
    /// Every setting, request, error and metric.
    reference:
        times waiting idempotency http sqs streams identities errors metrics program testing powertools
}

guides! {
    /// Deploy it, and repair it.
    operate:
        deploying first_hour runbook
}

guides! {
    /// What it guarantees, what checks that, how it works, and what it costs in time.
    trust:
        guarantees proof comparison performance protocol
}
