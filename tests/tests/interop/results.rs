//! The result of one side is replayed by the other.

use fastrand::Rng;
use lambda_lock::Run;
use lambda_lock::idempotency::OnUnstorableResult;
use lambda_lock_tests::powertools::Language;
use serde_json::{Value, json};

use crate::{again, order, place, place_all, ran, refused, replayed, with_each_language};

const VALIDATE_AMOUNT: [&str; 2] = ["--validate", "amount"];

/// Orders with all kinds of results, and all kinds of payloads to validate.
fn orders_with_results(language: Language) -> Vec<Value> {
    let mut results = vec![
        json!({"b": 1, "a": [1, 2.5, "é", {"c": [[], {}]}], "z": null, "y": true}),
        json!([null, [1, [2]], {"a": ""}]),
        json!("text"),
        json!("é😀 \" \\ / \n \u{7f} \u{2028}"),
        json!("{\"json\": \"in a string\"}"),
        json!(7),
        json!(-3),
        json!(2.5),
        json!(0.1 + 0.2),
        json!(1e-7),
        json!(9_007_199_254_740_991_u64),
        json!(true),
        json!(null),
        json!(false),
        json!(0),
        json!(""),
        json!([]),
        json!({}),
    ];
    if language == Language::Python {
        results.extend([json!(u64::MAX), json!(i64::MIN), json!(1.0), json!(1e18), json!({"": "an empty key"})]);
    }
    let order = |(number, result)| json!({"id": format!("order {number}"), "amount": result, "result": result});
    let mut orders: Vec<_> = results.into_iter().enumerate().map(order).collect();
    let mut random = Rng::with_seed(1);
    let generated = (0..GENERATED).map(|number| {
        let [of_key, amount, result] = [(); 3].map(|()| any_json(&mut random, language, 3));
        json!({"id": [number, of_key], "amount": amount, "result": result})
    });
    orders.extend(generated);
    orders
}

/// How many orders have a generated key, payload and result.
const GENERATED: usize = 150;

/// What both sides can represent: an integer of TypeScript has up to 53 bits, and a float that is whole becomes one.
fn any_json(random: &mut Rng, language: Language, depth: u32) -> Value {
    // Python sorts names by code points, which puts the last one before the emoji, and JavaScript by UTF-16 code units.
    const TEXTS: [&str; 9] = ["", "a", "é", "😀", "\" \\ /", "\n\t\r\0", "\u{2028}<&>", "1.0", "\u{ff61}"];
    let text = |random: &mut Rng| (0..random.usize(0..4)).map(|_| TEXTS[random.usize(0..TEXTS.len())]).collect();
    match random.u8(if depth == 0 { 2..8 } else { 0..8 }) {
        0 => (0..random.usize(0..4)).map(|_| any_json(random, language, depth - 1)).collect(),
        1 => {
            let mut fields = serde_json::Map::new();
            for _ in 0..random.usize(0..4) {
                let mut name: String = text(random);
                if name.is_empty() && language == Language::TypeScript {
                    name.push('a');
                }
                fields.insert(name, any_json(random, language, depth - 1));
            }
            fields.into()
        }
        2 => Value::Null,
        3 => random.bool().into(),
        4 => Value::String(text(random)),
        5 => random.i32(-300..300).into(),
        6 => (random.i64(..) >> 11).into(),
        _ => {
            let float = (random.f64() + 0.01) * 10_f64.powi(random.i32(-12..12));
            if float.fract() == 0.0 { Value::Null } else { float.into() }
        }
    }
}

#[tokio::test]
#[ignore = "needs Powertools: .ci/run interop"]
async fn powertools_replays_the_results_of_rust() {
    with_each_language(async |sides| {
        let orders = orders_with_results(sides.language);
        let ours = sides.ours().validate(|order| order["amount"].clone());
        let expected: Vec<_> = orders.iter().map(|order| ran(&order["result"])).collect();
        assert_eq!(place_all(&ours, &orders).await, expected);
        let rows = sides.rows().await;
        let answers = sides.theirs(&VALIDATE_AMOUNT, &again(&orders)).await;
        assert_eq!(answers.len(), orders.len());
        for (order, answer) in orders.iter().zip(answers) {
            let result = &order["result"];
            // Powertools for Python treats these as no result.
            let is_nothing = [json!(false), json!(0), json!(""), json!([]), json!({})].contains(result);
            let seen = if sides.language == Language::Python && is_nothing { &Value::Null } else { result };
            assert_eq!(answer, replayed(seen));
        }
        assert_eq!(sides.rows().await, rows);
    })
    .await;
}

#[tokio::test]
#[ignore = "needs Powertools: .ci/run interop"]
async fn rust_replays_the_results_of_powertools() {
    with_each_language(async |sides| {
        let orders = orders_with_results(sides.language);
        let expected: Vec<_> = orders.iter().map(|order| ran(&order["result"])).collect();
        assert_eq!(sides.theirs(&VALIDATE_AMOUNT, &orders).await, expected);
        let rows = sides.rows().await;
        let ours = sides.ours().validate(|order| order["amount"].clone());
        let expected: Vec<_> = orders.iter().map(|order| replayed(&order["result"])).collect();
        assert_eq!(place_all(&ours, &again(&orders)).await, expected);
        assert_eq!(sides.rows().await, rows);
    })
    .await;
}

#[tokio::test]
#[ignore = "needs Powertools: .ci/run interop"]
async fn powertools_replays_runs_that_rust_committed_or_completed_without_result() {
    with_each_language(async |sides| {
        let ours = sides.ours().on_unstorable_result(OnUnstorableResult::CompleteWithoutResult);
        let client = sides.world.client();
        let result = json!({"by": "a transaction"});
        let committed = async |run: &Run| {
            let completion = run.complete_in(&result).unwrap();
            client.transact_write_items().transact_items(completion).send().await.unwrap();
            Ok(result.clone())
        };
        let outcome = Box::pin(ours.run(&json!({"id": "committed"}), committed)).await;
        assert_eq!(outcome.unwrap(), result);
        let too_large = json!("x".repeat(400 * 1024));
        assert_eq!(place(&ours, &json!({"id": "too large", "result": too_large})).await, ran(&too_large));
        let orders = ["committed", "too large"].map(|id| order(id, "theirs"));
        assert_eq!(sides.theirs(&[], &orders).await, [replayed(&result), replayed(&Value::Null)]);
    })
    .await;
}

#[tokio::test]
#[ignore = "needs Powertools: .ci/run interop"]
async fn a_different_payload_is_a_mismatch_on_both_sides() {
    with_each_language(async |sides| {
        let ours = sides.ours().validate(|order| order["amount"].clone());
        let (first, second) = (order("ours first", "ours"), order("theirs first", "theirs"));
        let (mut other_first, mut other_second) = (first.clone(), second.clone());
        other_first["amount"] = json!(5.5);
        other_second["amount"] = json!(null);
        place(&ours, &first).await;
        assert_eq!(
            sides.theirs(&VALIDATE_AMOUNT, &[other_first, second]).await,
            [refused("IdempotencyValidationError"), ran(&json!("theirs"))]
        );
        assert_eq!(place(&ours, &other_second).await, refused("IdempotencyMismatch"));
    })
    .await;
}
