//! Short histories, checked by an algorithm that is not ours: [`judge`] lets stateright's linearizability tester look for an order
//! of the requests in which the rows, one request after the other, give each answer that a client saw. A seed determines each
//! history, which runs in paused time.
//!
//! Whether more holders were valid at once than there may be is arithmetic, and needs no tester.

mod holders;
pub mod judge;
mod rates;
mod records;
mod witness;

use std::sync::Arc;
use std::time::Duration;

use aws_sdk_dynamodb::Client;
use fastrand::Rng;
use lambda_lock::Locks;
use lambda_lock::embedded::Host;
use tokio::time::sleep;

use crate::history::Mutation;
use crate::history::stage::{self, Network, Stage, TABLE};
use crate::{idempotency_history, rate_history, semaphore_history, several_history};
use holders::{Held, Holders, Plan};
use judge::{Judged, judge};
use witness::Witness;

/// How late a request can arrive.
const LATEST_ARRIVAL: Duration = Duration::from_secs(5);

/// The clients of a history want this.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Kind {
    /// One key.
    Locks,
    /// One key, for workflows and for others.
    Identities,
    /// Several keys at once, or one of them.
    Several,
    /// Permits of a semaphore.
    Permits,
    /// The result of work that is done once.
    Records,
    /// A call in its turn.
    Rates,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Locks, Self::Identities, Self::Several, Self::Permits, Self::Records, Self::Rates];

    /// The planted mistakes in the protocol of this kind.
    #[must_use]
    pub const fn mutations(self) -> &'static [Mutation] {
        match self {
            Self::Locks | Self::Identities => &Mutation::LOCK,
            Self::Several => &several_history::MUTATIONS,
            Self::Permits => &semaphore_history::MUTATIONS,
            Self::Records => &idempotency_history::MUTATIONS,
            Self::Rates => &rate_history::MUTATIONS,
        }
    }
}

/// What the checker says about a history.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// There is an order of this many requests.
    Linearizable(usize),
    /// There is none.
    NotLinearizable(String),
    /// More holders were valid at once than there may be.
    Overlap(String),
    /// A part of it was not checked, and why.
    LeftOut(&'static str),
}

/// Runs the history of a seed, with the protocol or with a mutation of it, and checks it.
#[must_use]
pub fn check(kind: Kind, seed: u64, mutation: Option<Mutation>) -> Verdict {
    let scene = stage::play(seed, history(kind, seed, mutation));
    if let Some(overlap) = scene.holders.overlap() {
        return Verdict::Overlap(overlap);
    }
    let Judged { requests, left_out, violation } = judge(&scene.witness.seen());
    match (violation, left_out.into_keys().next()) {
        (Some(violation), _) => Verdict::NotLinearizable(violation),
        (None, Some(why)) => Verdict::LeftOut(why),
        (None, None) => Verdict::Linearizable(requests),
    }
}

/// The part of a history that all its tasks share.
#[derive(Debug)]
struct Scene {
    stage: Stage,
    witness: Witness,
    holders: Holders,
    plan: Plan,
}

async fn history(kind: Kind, seed: u64, mutation: Option<Mutation>) -> Arc<Scene> {
    let mut random = Rng::with_seed(seed);
    let stage = Stage::set(seed, &mut random, LATEST_ARRIVAL, mutation).await;
    let plan = Plan::draw(kind, &mut random);
    let witness = Witness::new(random.bool());
    let scene = Arc::new(Scene { stage, witness, holders: Holders::of(&plan), plan });
    match kind {
        Kind::Records => {
            let terms = records::Terms::draw(&mut random, &scene.stage);
            stage::work(2..=4, &mut random, |_, random| records::caller(Arc::clone(&scene), terms, random)).await;
        }
        Kind::Rates => {
            let pace = rates::Pace::draw(&mut random);
            stage::work(2..=4, &mut random, |_, random| rates::caller(Arc::clone(&scene), pace, random)).await;
        }
        _ => holders::work(&scene, &mut random).await,
    }
    // The last late request has arrived.
    sleep(LATEST_ARRIVAL).await;
    scene
}

impl Scene {
    /// A host, and its client.
    fn host(&self, random: &mut Rng) -> (Host, Client, Locks) {
        let network = if random.bool() { Network::draw(random) } else { Network::Good };
        let host = self.stage.host(random, network, self.witness.clone());
        let client = Client::from_conf(host.client().config().to_builder().interceptor(self.witness.clone()).build());
        // The name says the skew to a mutation.
        let holder = format!("a host, skew {}", self.stage.clock_skew.as_millis());
        let locks = Locks::builder(client.clone(), TABLE).clock_skew(self.stage.clock_skew).holder(holder);
        (host, client, locks.build().unwrap())
    }

    fn now(&self) -> std::time::SystemTime {
        self.stage.engine.now()
    }
}
