//! Any update of any row: the evaluator of the model, which applies updates to rows in memory, and the engine agree about the
//! verdict, and about the row afterwards. The engine is DynamoDB Local if `LOCK_TEST_ENDPOINT` is set.
//!
//! The conditions and updates have the forms that the crate sends, and the rows are of any content. For example, an update may
//! add 1 to an attribute that is a text. Both must then reject it.

#[expect(dead_code, reason = "the histories use all of it")]
#[path = "../../src/request/expression.rs"]
mod expression;

#[path = "../../src/request/evaluate.rs"]
mod evaluate;

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};

use aws_sdk_dynamodb::error::ProvideErrorMetadata;
use aws_sdk_dynamodb::types::AttributeValue;
use lambda_lock_tests::World;
use lambda_lock_tests::rows::{from_json, to_json};
use proptest::collection::{btree_map, vec};
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Value, json};
use tokio::runtime::Builder;

use crate::KEY;
use crate::search::for_all;
use expression::{Comparison, Condition, Operand, Path, Update};

const CASES: u32 = 400;

/// Some need a placeholder: reserved words, and names with other characters than letters.
const ATTRIBUTES: [&str; 4] = ["status", "fence", "owner", "permit:4#flow#"];
const FIELDS: [&str; 3] = ["no", "end", "nonce"];

/// In order: prefixes of each other, texts in another order than the numbers that they look like, and one that is not ASCII.
const TEXTS: [&str; 7] = ["", "1", "10", "9", "a", "ab", "é🔒"];
/// In order: around the bounds of integers, and with more digits than a float has.
const NUMBERS: [&str; 12] = [
    "-9223372036854775809",
    "-10",
    "-1",
    "0",
    "1",
    "9",
    "10",
    "9007199254740992",
    "9007199254740993",
    "9223372036854775807",
    "18446744073709551616",
    "123456789012345678901234567890123456",
];

/// What becomes of an update.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Verdict {
    Applied,
    /// The row does not meet the condition.
    Refused,
    /// An operand, or the map of a path, is missing or has the wrong type.
    Rejected,
}

fn any_text() -> impl Strategy<Value = Value> + Clone {
    select(&TEXTS[..]).prop_map(|text| json!({ "S": text }))
}

fn any_number() -> impl Strategy<Value = Value> + Clone {
    select(&NUMBERS[..]).prop_map(|digits| json!({ "N": digits }))
}

fn any_scalar() -> impl Strategy<Value = Value> + Clone {
    prop_oneof![any_text(), any_number()]
}

fn any_map() -> impl Strategy<Value = Value> + Clone {
    btree_map(select(&FIELDS[..]), any_scalar(), 0..3).prop_map(|map| json!({ "M": map }))
}

fn any_value() -> impl Strategy<Value = Value> + Clone {
    prop_oneof![1 => any_text(), 2 => any_number(), 2 => any_map()]
}

/// A key without a row, or a row without its key.
fn any_row() -> impl Strategy<Value = Option<Value>> {
    let row = btree_map(select(&ATTRIBUTES[..]), any_value(), 0..=4).prop_map(|row| json!(row));
    prop_oneof![1 => Just(None), 7 => row.prop_map(Some)]
}

fn any_path() -> impl Strategy<Value = Path> + Clone {
    let names = (select(&ATTRIBUTES[..]), option::weighted(0.3, select(&FIELDS[..])));
    names.prop_map(|(attribute, field)| path_of(attribute, field))
}

fn path_of(attribute: &str, field: Option<&str>) -> Path {
    field.map_or_else(|| Path::attribute(attribute), |field| Path::field(attribute, field))
}

/// A term without terms in it, as far as DynamoDB accepts it for any row: it rejects a path that is compared with itself, a
/// range from a larger bound to a smaller one, and the order of a map.
fn any_leaf() -> impl Strategy<Value = Condition> {
    use Comparison::{Equal, Greater, GreaterOrEqual, Less, LessOrEqual, Unequal};
    let comparisons = select(vec![Equal, Unequal, Less, LessOrEqual, Greater, GreaterOrEqual]);
    let equal = (any_path(), select(vec![Equal, Unequal]), any_value());
    let ordered = (any_path(), comparisons.clone(), any_scalar());
    let of_paths = (any_path(), comparisons, any_path())
        .prop_filter("a path differs from itself", |(left, _, right)| left != right);
    let range = prop_oneof![any_range("S", &TEXTS), any_range("N", &NUMBERS)];
    prop_oneof![
        any_path().prop_map(Condition::Exists),
        any_path().prop_map(Condition::Missing),
        (any_path(), any_text()).prop_map(|(path, start)| Condition::BeginsWith(path, Operand::Value(start))),
        equal.prop_map(|(path, comparison, value)| Condition::Compare(path, comparison, Operand::Value(value))),
        ordered.prop_map(|(path, comparison, value)| Condition::Compare(path, comparison, Operand::Value(value))),
        of_paths.prop_map(|(path, comparison, other)| Condition::Compare(path, comparison, Operand::Path(other))),
        (any_path(), range).prop_map(|(path, (least, most))| Condition::Between(path, least, most)),
    ]
}

/// Two values of this type, of which these are in order.
fn any_range(of: &'static str, ordered: &'static [&'static str]) -> impl Strategy<Value = (Operand, Operand)> {
    (0..ordered.len(), 0..ordered.len()).prop_map(move |(one, other)| {
        let bound = |at: usize| Operand::Value(json!({ of: ordered[at] }));
        (bound(one.min(other)), bound(one.max(other)))
    })
}

fn any_condition() -> impl Strategy<Value = Condition> {
    let condition = any_leaf().prop_recursive(3, 8, 3, |inner| {
        prop_oneof![
            inner.clone().prop_map(|term| Condition::Not(Box::new(term))),
            vec(inner.clone(), 2..=3).prop_map(Condition::And),
            vec(inner, 2..=3).prop_map(Condition::Or),
        ]
    });
    prop_oneof![1 => Just(Condition::True), 2 => condition]
}

/// What the crate sets attributes to.
#[derive(Clone, Debug)]
enum To {
    Value(Value),
    Default(Value),
    DefaultOf(Path),
    Next(Path, Value),
    Minus(Value),
}

fn any_assignment() -> impl Strategy<Value = To> {
    prop_oneof![
        2 => any_value().prop_map(To::Value),
        1 => any_value().prop_map(To::Default),
        1 => any_path().prop_map(To::DefaultOf),
        // Often of an attribute that the same update sets.
        3 => (any_path(), any_number()).prop_map(|(of, start)| To::Next(of, start)),
        1 => any_number().prop_map(To::Minus),
    ]
}

/// Sets the path, or removes it.
fn any_action() -> impl Strategy<Value = Option<To>> {
    prop_oneof![3 => any_assignment().prop_map(Some), 1 => Just(None)]
}

/// DynamoDB rejects an update with a path within another of its paths, so that it has either an attribute or fields of it.
fn any_update() -> impl Strategy<Value = Update> {
    let whole = any_action().prop_map(|action| BTreeMap::from([(None, action)]));
    let fields = btree_map(select(&FIELDS[..]).prop_map(Some), any_action(), 1..=2);
    let actions = prop_oneof![2 => whole, 1 => fields];
    btree_map(select(&ATTRIBUTES[..]), actions, 0..=4).prop_map(|attributes| {
        let mut update = Update::default();
        for (attribute, actions) in attributes {
            for (field, action) in actions {
                let path = path_of(attribute, field);
                match action {
                    // DynamoDB rejects an attribute that is its own default.
                    Some(To::DefaultOf(other)) if other == path => {}
                    Some(to) => update.set.push((path.clone(), operand_of(&path, to))),
                    None => update.remove.push(path),
                }
            }
        }
        update
    })
}

fn operand_of(path: &Path, to: To) -> Operand {
    let default = |path: &Path, value| Operand::IfNotExists(path.clone(), Box::new(value));
    match to {
        To::Value(value) => Operand::Value(value),
        To::Default(value) => default(path, Operand::Value(value)),
        To::DefaultOf(other) => default(path, Operand::Path(other)),
        To::Next(of, start) => {
            Operand::Plus(Box::new(default(&of, Operand::Value(start))), Box::new(Operand::number(1)))
        }
        To::Minus(value) => Operand::Minus(Box::new(Operand::Path(path.clone())), Box::new(Operand::Value(value))),
    }
}

/// The engines differ where an attribute is there, and its default refers to a missing one: DynamoDB Local rejects the update,
/// and the embedded engine does not read the default. The evaluator does what DynamoDB Local does.
fn has_unread_default(row: Option<&Value>, update: &Update) -> bool {
    let is_there = |path: &Path| row.is_some_and(|row| !path.of(row).is_null());
    update.set.iter().any(|(_, operand)| match operand {
        Operand::IfNotExists(path, default) => {
            is_there(path) && matches!(&**default, Operand::Path(other) if !is_there(other))
        }
        _ => false,
    })
}

/// What the evaluator makes of an update, and the row afterwards.
fn in_memory(condition: &Condition, update: &Update, row: Option<&Value>) -> (Verdict, Option<Value>) {
    if !condition.holds(row.unwrap_or(&json!({}))) {
        return (Verdict::Refused, row.cloned());
    }
    match update.applied_to(row.unwrap_or(&json!({ "id": { "S": KEY } }))) {
        Some(after) => (Verdict::Applied, Some(after)),
        None => (Verdict::Rejected, row.cloned()),
    }
}

/// What the engine makes of it.
async fn in_engine(
    world: &World,
    condition: &Condition,
    update: &Update,
    row: Option<&Value>,
) -> (Verdict, Option<Value>) {
    match row {
        Some(row) => world.put_row(from_json(row)).await,
        None => world.delete_row(KEY).await,
    }
    let mut request = json!({});
    expression::write(&mut request, condition, update);
    let text = |name: &str| request[name].as_str().map(str::to_owned);
    let names = request["ExpressionAttributeNames"].as_object().map(|names| {
        names.iter().map(|(name, of)| (name.clone(), of.as_str().unwrap().to_owned())).collect::<HashMap<_, _>>()
    });
    let values = request.get("ExpressionAttributeValues").map(from_json);
    let sent = world.client().update_item().table_name(&world.table).key("id", AttributeValue::S(KEY.to_owned()));
    let sent =
        sent.set_condition_expression(text("ConditionExpression")).set_update_expression(text("UpdateExpression"));
    let sent = sent.set_expression_attribute_names(names).set_expression_attribute_values(values);
    let verdict = match Box::pin(sent.send()).await.map_err(aws_sdk_dynamodb::Error::from) {
        Ok(_) => Verdict::Applied,
        Err(aws_sdk_dynamodb::Error::ConditionalCheckFailedException(_)) => Verdict::Refused,
        Err(error) if error.code() == Some("ValidationException") => Verdict::Rejected,
        Err(error) => panic!("{error:?} for {request}"),
    };
    (verdict, world.row(KEY).await.as_ref().map(to_json))
}

#[test]
fn an_update_in_memory_does_what_the_engine_does() {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let world = runtime.block_on(World::new());
    let counts = Cell::new([0_u32; 3]);
    let cases = (any_row(), any_condition(), any_update());
    let cases = cases.prop_filter("the engines differ", |(row, _, update)| !has_unread_default(row.as_ref(), update));
    for_all("evaluator", CASES, &cases, |(row, condition, update)| {
        let row = row.map(|mut row| {
            row["id"] = json!({ "S": KEY });
            row
        });
        let expected = runtime.block_on(in_engine(&world, &condition, &update, row.as_ref()));
        assert_eq!(in_memory(&condition, &update, row.as_ref()), expected, "in memory, and in the engine");
        let mut sums = counts.get();
        sums[expected.0 as usize] += 1;
        counts.set(sums);
    });
    let counts = counts.get();
    println!("applied, refused, rejected: {counts:?}");
    assert!(counts.iter().all(|count| *count >= CASES / 20), "applied, refused, rejected: {counts:?}");
}
