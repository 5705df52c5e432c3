//! The frame of every history: from the first draw of its seed to its outcome.

use std::future::{pending, ready};
use std::ops::{Deref, RangeInclusive};
use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use lambda_lock::embedded::Host;

use super::book::{Book, Observe, Observer};
use super::stage::{self, Network, Stage};
use super::{Mutation, Outcome};

/// The part of a history that all its tasks share: its stage, its ledger, and what only its kind has.
pub(crate) struct Set<K: Observe, O = ()> {
    pub(crate) stage: Stage,
    pub(crate) ledger: Arc<Book<K>>,
    pub(crate) own: O,
}

impl<K: Observe, O> Set<K, O> {
    pub(crate) fn new(stage: Stage, kept: K, own: O) -> Self {
        Self { ledger: Arc::new(Book::new(&stage, kept)), stage, own }
    }
}

impl<K: Observe, O> Deref for Set<K, O> {
    type Target = O;

    fn deref(&self) -> &O {
        &self.own
    }
}

/// A [`Set`] of any kind.
pub(crate) trait AnySet {
    type Kept: Observe;

    fn stage(&self) -> &Stage;

    fn ledger(&self) -> &Arc<Book<Self::Kept>>;
}

impl<K: Observe, O> AnySet for Set<K, O> {
    type Kept = K;

    fn stage(&self) -> &Stage {
        &self.stage
    }

    fn ledger(&self) -> &Arc<Book<K>> {
        &self.ledger
    }
}

/// What differs from one kind of history to the next.
pub(crate) trait History: AnySet + Send + Sync + Sized + 'static {
    /// How late a request can arrive: AWS accepts its signature for 5 minutes.
    const LATEST_ARRIVAL: Duration = Duration::from_mins(5);

    fn set(seed: u64, stage: Stage, random: &mut Rng) -> Self;

    /// A host whose requests the ledger sees.
    fn host(&self, random: &mut Rng, network: Network) -> Host {
        self.stage().host(random, network, Observer(Arc::clone(self.ledger())))
    }

    /// How many workers there are.
    fn workers(&self) -> RangeInclusive<usize> {
        2..=4
    }

    fn worker(scene: Arc<Self>, number: usize, random: Rng) -> impl Future<Output = ()> + Send;

    /// Deletes expired rows until all requests have arrived.
    fn sweep(&self) -> impl Future<Output = ()> + Send {
        pending()
    }

    /// Does what happens beside the workers.
    fn beside(_seed: u64, _scene: &Arc<Self>) -> impl Future<Output = ()> {
        ready(())
    }

    /// Serves clients with good networks after the workers. Late requests still arrive.
    fn serve_last(&self, _random: &mut Rng) -> impl Future<Output = ()> {
        ready(())
    }

    /// Looks at what is left when all requests have arrived.
    fn inspect(_scene: &Arc<Self>, _random: &mut Rng) -> impl Future<Output = ()> {
        ready(())
    }
}

/// What the ledger of a history counts.
type Counts<H> = <<H as AnySet>::Kept as Observe>::Counts;

/// Runs the history of a seed, with the protocol or with a mutation of it.
pub(crate) fn run<H: History>(seed: u64, mutation: Option<Mutation>) -> Outcome<Counts<H>> {
    play::<H>(seed, mutation).1
}

/// The same. Also returns the scene at the end.
pub(crate) fn play<H: History>(seed: u64, mutation: Option<Mutation>) -> (Arc<H>, Outcome<Counts<H>>) {
    stage::play(seed, async {
        let mut random = Rng::with_seed(seed);
        let stage = Stage::set(seed, &mut random, H::LATEST_ARRIVAL, mutation).await;
        let scene = Arc::new(H::set(seed, stage, &mut random));
        let sweeper = tokio::spawn({
            let scene = Arc::clone(&scene);
            async move { scene.sweep().await }
        });
        let beside = H::beside(seed, &scene);
        let worker = |number, random| H::worker(Arc::clone(&scene), number, random);
        tokio::join!(stage::work(scene.workers(), &mut random, worker), beside);
        scene.serve_last(&mut random).await;
        stage::settle(H::LATEST_ARRIVAL).await;
        sweeper.abort();
        H::inspect(&scene, &mut random).await;
        let outcome = Outcome { twisted: scene.stage().twisted(), ..scene.ledger().outcome() };
        (scene, outcome)
    })
}
